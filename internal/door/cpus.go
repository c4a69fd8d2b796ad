package door

import (
	"context"
	"os"
	"path/filepath"
	"time"

	"k8s.io/utils/cpuset"

	"github.com/tideline-io/tideline/internal/engine"
	"github.com/tideline-io/tideline/internal/hostfs"
	"github.com/tideline-io/tideline/internal/preflight"
)

// cpuPoll is how often it is looked whether CPUs have come or gone. The kernel tells it to nobody but udev.
const cpuPoll = 2 * time.Second

func (d *Door) onlineCPUs() string {
	data, err := os.ReadFile(filepath.Join(d.cfg.Root, "sys/devices/system/cpu/online"))
	if err != nil {
		return d.online // for a moment, say
	}
	return string(data)
}

// watchCPUs tells the engine of CPUs that go on or off.
func (d *Door) watchCPUs(ctx context.Context, e *engine.Engine) error {
	t := time.NewTicker(cpuPoll)
	defer t.Stop()
	told := "" // the list that could not be taken, so that it is told once
	for {
		select {
		case <-t.C:
		case <-ctx.Done():
			return nil
		}
		now := d.onlineCPUs()
		if now == d.online {
			continue
		}
		facts, err := hostfs.Open(d.cfg.Root).ReadFacts()
		if err != nil || facts.Node.Online.IsEmpty() {
			if now != told {
				told = now
				d.log.Warn("read the CPUs of this machine", "online", now, "err", err)
			}
			continue // and is tried again
		}
		d.online = now
		d.log.Info("CPUs have come or gone", "online", facts.Node.Online.String())
		e.SetTopology(facts.Topology(), facts.Node.Online)
	}
}

// kubeletReserved is the CPUs that the kubelet's configuration keeps for the host; none where it can't be read, as in a
// container.
func (d *Door) kubeletReserved() cpuset.CPUSet {
	k := preflight.ReadKubelet(d.cfg.Root, "")
	if k.Error != "" {
		d.log.Info("the kubelet's reserved CPUs are not known", "why", k.Error)
		return cpuset.New()
	}
	set, _, err := k.Reserved()
	if err != nil {
		d.log.Warn("the kubelet's reserved CPUs are not known", "err", err)
	}
	return set
}

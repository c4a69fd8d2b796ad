package node

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/tideline-io/tideline/integration/lab"
	"github.com/tideline-io/tideline/internal/policy"
	"github.com/tideline-io/tideline/internal/units"
)

// accounting is what a kubelet asks of every slice: opencontainers/cgroups, systemd/v2.go, Apply. The list stays as long
// as the unit does, so that systemd keeps the controllers of these.
var accounting = []string{"CPUAccounting b true", "IOAccounting b true", "MemoryAccounting b true", "TasksAccounting b true", "DefaultDependencies b false"}

// startSlice asks systemd for the slice at an absolute cgroup path, as a kubelet with the systemd driver does. One that
// is there is left alone.
func startSlice(ctx context.Context, cgroup string, properties ...string) error {
	name := path.Base(cgroup)
	all := append(append([]string{"Description s " + name}, accounting...), properties...)
	err := manager(ctx, append(append([]string{"StartTransientUnit", "ssa(sv)a(sa(sv))", name, "replace"}, arguments(all)...), "0")...)
	if err != nil && !strings.Contains(err.Error(), "already") {
		return fmt.Errorf("start slice %s: %w", name, err)
	}
	for end := time.Now().Add(time.Minute); ; time.Sleep(50 * time.Millisecond) {
		if _, err := os.Stat(lab.CgroupFile("", cgroup, "cgroup.procs")); !errors.Is(err, fs.ErrNotExist) || time.Now().After(end) {
			return err
		}
	}
}

// setSlice changes properties of a slice, for as long as the machine runs.
func setSlice(ctx context.Context, cgroup string, properties ...string) error {
	if len(properties) == 0 {
		return nil
	}
	args := append([]string{"SetUnitProperties", "sba(sv)", path.Base(cgroup), "true"}, arguments(properties)...)
	if err := manager(ctx, args...); err != nil {
		return fmt.Errorf("set properties of slice %s: %w", path.Base(cgroup), err)
	}
	return nil
}

// arguments writes "NAME TYPE VALUE" properties as busctl takes an array of them.
func arguments(properties []string) []string {
	out := []string{strconv.Itoa(len(properties))}
	for _, p := range properties {
		out = append(out, strings.SplitN(p, " ", 3)...)
	}
	return out
}

func manager(ctx context.Context, args ...string) error {
	to := []string{"call", "--quiet", "org.freedesktop.systemd1", "/org/freedesktop/systemd1", "org.freedesktop.systemd1.Manager"}
	out, err := exec.CommandContext(ctx, "busctl", append(to, args...)...).CombinedOutput()
	if err != nil {
		return fmt.Errorf("busctl call %s: %w: %s", strings.Join(args, " "), err, strings.TrimSpace(string(out)))
	}
	return nil
}

// properties are what a kubelet tells systemd of a pod's resources: the kernel's files alone would not last.
func properties(r policy.Resources) []string {
	var out []string
	if r.CPUShares != nil {
		out = append(out, fmt.Sprintf("CPUWeight t %d", units.WeightQuadratic(uint64(*r.CPUShares))))
	}
	if r.CPUQuota != nil && r.CPUPeriod != nil && *r.CPUPeriod > 0 {
		perSecond := "18446744073709551615" // none
		if *r.CPUQuota > 0 {
			const step = 10000 // systemd rounds down to 1 %, so opencontainers/cgroups rounds up
			perSecond = strconv.FormatInt((*r.CPUQuota*1e6 / *r.CPUPeriod + step - 1)/step*step, 10)
		}
		out = append(out, fmt.Sprintf("CPUQuotaPeriodUSec t %d", *r.CPUPeriod), "CPUQuotaPerSecUSec t "+perSecond)
	}
	if r.MemoryLimit != nil {
		out = append(out, fmt.Sprintf("MemoryMax t %d", *r.MemoryLimit))
	}
	return out
}

// scope gives the cgroup of a container that is named by its pod's cgroup and its ID, as its runtime and cgroup driver
// call it. Other cgroups stay what they are.
func scope(cgroup string) string {
	dir, id := path.Split(cgroup)
	if strings.HasSuffix(strings.TrimSuffix(dir, "/"), ".slice") && !strings.Contains(id, ".") {
		return filepath.Join(dir, "cri-containerd-"+id+".scope")
	}
	if _, err := os.Stat(lab.CgroupFile("cpu", dir+"crio-"+id, "")); err == nil {
		return dir + "crio-" + id
	}
	return cgroup
}

package vm

import (
	"bytes"
	"strings"
	"testing"
	"time"
)

func TestMachineWithSystemd(t *testing.T) {
	needMachine(t)
	var out bytes.Buffer
	start := time.Now()
	exit, err := Run(t.Context(), Config{
		Init: Systemd, Program: "/bin/sh", CPUs: 4, NUMANodes: 4, Limit: 4 * time.Minute, Stdout: &out, Progress: t.Output(),
		Args: []string{"-c", `cat /proc/1/comm /sys/devices/system/node/online /proc/self/cgroup; echo $TIDELINE_LAB
			systemctl is-system-running --wait; systemctl --failed --no-legend; busctl --no-pager list >/dev/null && exit 7`},
	})
	want := "systemd\n0-3\n0::/system.slice/program.service\nvm\nrunning\n"
	if err != nil || exit != 7 || out.String() != want {
		t.Errorf("got exit status %d, %v, output:\n%s\nwant 7, no error and\n%s", exit, err, out.String(), want)
	}
	t.Logf("%.0f s", time.Since(start).Seconds())
}

func TestMachineWhoseProgramIsNotThere(t *testing.T) {
	needMachine(t)
	_, err := Run(t.Context(), Config{Init: Systemd, Program: "/bin/nothing", Limit: 4 * time.Minute, Progress: t.Output()})
	if err == nil || !strings.Contains(err.Error(), "start program: fork/exec /bin/nothing") {
		t.Errorf("got %v", err)
	}
}

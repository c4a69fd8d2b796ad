package resctrl

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/tideline-io/tideline/api/v1alpha1"
	"github.com/tideline-io/tideline/integration/demo"
	"github.com/tideline-io/tideline/integration/images"
	"github.com/tideline-io/tideline/integration/lab"
	"github.com/tideline-io/tideline/integration/node"
	"github.com/tideline-io/tideline/integration/own"
	"github.com/tideline-io/tideline/internal/facts/kube"
	"github.com/tideline-io/tideline/resctrl/resctrltest"
)

// doorEnv tells the guest which door to start.
const doorEnv = "RESCTRL_DOOR"

// TestDoors has pods made through each door on the kernel's own resctrl, and shows what the operator sees of it.
func TestDoors(t *testing.T) {
	needHost(t)
	for _, door := range []string{node.CRI, node.NRI} {
		t.Run(door, func(t *testing.T) {
			dir := boot(t, machine{hardware: hardware(resctrltest.Intel()), cpus: 4, nodes: 2, run: "TestGuestDoors", containers: true, env: []string{doorEnv + "=" + door}})
			for _, screen := range screens {
				b, err := os.ReadFile(filepath.Join(dir, screen.file))
				if err != nil {
					t.Fatal(err)
				}
				t.Logf("tideline %s\n%s", strings.Join(screen.args, " "), b)
			}
		})
	}
}

// screens are what the operator looks at.
var screens = []struct {
	file string
	args []string
	door bool // it asks the door
}{
	{"show.txt", []string{"resctrl", "--width", "80"}, true},
	{"plan.txt", []string{"resctrl", "plan", "--width", "80"}, false},
	{"top.txt", []string{"resctrl", "top", "-n", "2", "--interval", "1s", "--width", "80"}, true},
}

func TestGuestDoors(t *testing.T) {
	needGuest(t)
	dir, err := own.Dir()
	if err != nil {
		t.Fatal(err)
	}
	cli := func(args ...string) (string, error) {
		out, err := exec.CommandContext(t.Context(), filepath.Join(dir, own.CLI), args...).CombinedOutput()
		return string(out), err
	}
	if out, err := cli("resctrl"); err != nil || !strings.Contains(out, "tideline resctrl --mount") {
		t.Errorf("resctrl before it is mounted: %v\n%s", err, out)
	}
	for _, when := range []string{"not mounted", "mounted already"} {
		if out, err := cli("resctrl", "--mount"); err != nil || !strings.Contains(out, "mounted at "+root) {
			t.Fatalf("--mount, %s: %v\n%s", when, err, out)
		}
	}
	if out, err := cli("resctrl", "--mount", "--mount-options", "cdp"); err == nil || !strings.Contains(out, "with no options") {
		t.Errorf("--mount with other options: %v\n%s", err, out)
	}
	if err := unix.Unmount(root, 0); err != nil {
		t.Fatal(err)
	}
	mounted(t, "", func() { guestDoors(t, os.Getenv(doorEnv)) })
}

// told has a container say its group with its first instruction.
const told = "grep res: /proc/self/cpu_resctrl_groups; exec sleep 86400"

func spec(name string, i int, tier v1alpha1.Tier, command string) *corev1.Pod {
	p := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "demo", UID: demo.UID(i), Labels: map[string]string{v1alpha1.LabelQoS: string(tier)}},
		Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "app", Image: images.Busybox, Command: []string{"sh", "-c", command}}}},
	}
	kube.Admit(p)
	return p
}

// member is a container that runs.
type member struct {
	t   *testing.T
	pod *node.Pod
}

// groups gives the groups of a container's processes.
func (m member) groups() []string {
	m.t.Helper()
	c := m.pod.Containers[0]
	b, err := os.ReadFile(lab.CgroupFile("cpu", filepath.Join(m.pod.Cgroup, c.ID), "cgroup.procs"))
	if err != nil {
		m.t.Fatal(err)
	}
	var out []string
	for line := range strings.Lines(string(b)) {
		var pid int
		if _, err := fmt.Sscan(line, &pid); err != nil {
			m.t.Fatal(err)
		}
		control, _, err := groupsOf(pid)
		if err != nil {
			continue // it has ended
		}
		out = append(out, control)
	}
	return out
}

func (m member) all(group string) bool {
	got := m.groups()
	for _, g := range got {
		if g != group {
			return false
		}
	}
	return len(got) > 0
}

// soon waits for what the door does within 5 s on a machine that is not emulated.
func soon(t *testing.T, what string, ok func() bool) {
	t.Helper()
	begin := time.Now()
	for !ok() {
		if time.Since(begin) > time.Minute {
			t.Fatalf("%s: not within a minute", what)
		}
		time.Sleep(50 * time.Millisecond)
	}
	t.Logf("%s: after %v", what, time.Since(begin).Round(100*time.Millisecond))
}

func guestDoors(t *testing.T, door string) {
	const ours, theirs = "tideline-be", "other"
	ctx := limited(t)
	schemata := func(group string) string { return read(t, filepath.Join(root, group, "schemata")) }
	there := func(group string) bool { _, err := os.Stat(filepath.Join(root, group)); return err == nil }
	if err := os.Mkdir(filepath.Join(root, theirs), 0o755); err != nil {
		t.Fatal(err)
	}
	write(t, theirs+"/schemata", "L3:0=70;1=70\n")
	others, before := schemata(theirs), schemata("")

	n, err := node.Start(ctx, lab.ForTest(t, "doors"), node.Options{Door: door})
	if err != nil {
		t.Fatal(err)
	}
	soon(t, "the group of batch", func() bool { return there(ours) })
	const decided = "    MB:0= 50;1= 50\n    L3:0=00f;1=00f\n"
	if got := schemata(ours); got != decided {
		t.Errorf("schemata of %s: got\n%swant\n%s", ours, got, decided)
	}
	run := func(s *corev1.Pod) member {
		t.Helper()
		p, err := n.Kubelet.RunPod(ctx, s)
		if err != nil {
			t.Fatal(err)
		}
		return member{t, p}
	}
	batch, service := run(spec("be", 1, v1alpha1.BE, told)), run(spec("ls", 2, v1alpha1.LS, told))
	forks := run(spec("forks", 3, v1alpha1.BE, "while :; do (sleep 0.3; sleep 0.3) & sleep 0.2; done"))
	wish := spec("wish", 4, v1alpha1.LS, told)
	wish.Annotations = map[string]string{v1alpha1.AnnotationResctrlClass: `{"tier":"BE"}`}
	quiet := run(wish)
	for what, m := range map[string]member{"batch": batch, "batch that forks": forks, "a service that wishes so": quiet} {
		soon(t, what+" is in its group", func() bool { return m.all(ours) })
	}
	if !service.all("/") {
		t.Errorf("the service is in %q", service.groups())
	}
	if door == node.NRI { // the very first instruction ran in the group
		if said := logOf(t, batch); said != "res:/"+ours && said != "res:"+ours {
			t.Errorf("batch began in %q", said)
		}
	}

	for _, s := range screens {
		args := s.args
		if s.door {
			args = append(args[:len(args):len(args)], "--control", n.ControlSocket())
		}
		if err := os.WriteFile(filepath.Join(results, s.file), []byte(tideline(t, ctx, args...)), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if _, metrics, err := n.Get(ctx, "/metrics"); err != nil || !strings.Contains(metrics, `tideline_resctrl_group_tasks{group="`+ours+`"}`) || !strings.Contains(metrics, `tideline_resctrl_llc_occupancy_bytes{domain="0",group="`+ours+`"}`) {
		t.Errorf("metrics of the group are missing: %v\n%s", err, metrics)
	}

	// What others do is put right.
	write(t, ours+"/schemata", "L3:0=7ff;1=7ff\nMB:0=100;1=100\n")
	soon(t, "its schemata are put right", func() bool { return schemata(ours) == decided })
	first := strings.Fields(read(t, lab.CgroupFile("cpu", filepath.Join(batch.pod.Cgroup, batch.pod.Containers[0].ID), "cgroup.procs")))[0]
	write(t, "tasks", first+"\n")
	soon(t, "a thread that was moved is back", func() bool { return batch.all(ours) })
	if err := syscall.Rmdir(filepath.Join(root, ours)); err != nil {
		t.Fatal(err)
	}
	soon(t, "a group that was removed is back with its threads", func() bool { return there(ours) && schemata(ours) == decided && batch.all(ours) && forks.all(ours) })
	// A thread that others have put into a group of theirs stays there.
	write(t, theirs+"/tasks", first+"\n")
	time.Sleep(8 * time.Second)
	if got := batch.groups(); len(got) == 0 || got[0] != theirs && got[0] != "/"+theirs {
		t.Errorf("it was taken out of a group of others: %q", got)
	}
	write(t, "tasks", first+"\n")
	soon(t, "back from the group of others", func() bool { return batch.all(ours) })

	if err := n.RestartProxy(ctx, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	late := run(spec("late", 5, v1alpha1.BE, told))
	soon(t, "made after a restart, in its group", func() bool { return late.all(ours) && batch.all(ours) })

	report, err := n.Control.Disable(ctx)
	if err != nil || len(report.Errors) > 0 || report.Groups != 1 {
		t.Errorf("disable: %+v, %v", report, err)
	}
	time.Sleep(6 * time.Second) // nothing makes it again
	if there(ours) || !batch.all("/") || !quiet.all("/") {
		t.Errorf("after disable: group there: %t, batch in %q", there(ours), batch.groups())
	}
	if got := schemata(theirs); got != others || schemata("") != before {
		t.Errorf("the group of others has\n%s", got)
	}
	if err := n.StopProxy(ctx, syscall.SIGTERM); err != nil {
		t.Error(err)
	}
}

// logOf is the first line that a container has written.
func logOf(t *testing.T, m member) string {
	t.Helper()
	var line string
	soon(t, "the container's first word", func() bool {
		b, err := os.ReadFile(filepath.Join(m.pod.Config.GetLogDirectory(), m.pod.Containers[0].Config.GetLogPath()))
		if err != nil {
			return false
		}
		first, _, ok := strings.Cut(string(b), "\n")
		if fields := strings.Fields(first); ok && len(fields) == 4 { // time, stream, tag, text
			line = fields[3]
		}
		return line != ""
	})
	return line
}

func tideline(t *testing.T, ctx context.Context, args ...string) string {
	t.Helper()
	dir, err := own.Dir()
	if err != nil {
		t.Fatal(err)
	}
	out, err := exec.CommandContext(ctx, filepath.Join(dir, own.CLI), args...).CombinedOutput()
	if err != nil {
		t.Fatalf("tideline %q: %v\n%s", args, err, out)
	}
	return string(out)
}

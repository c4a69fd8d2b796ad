// Package kubelet tests Tideline with the real kubelet: what it believes of its pods and its node is the same with us as
// without us, and so is its error log, while its containers have their tier's values. On the host with cgroup v1, and
// with -args -vm in a VM with cgroup v2, whose control plane runs beside QEMU to spare emulation.
package kubelet

import (
	"context"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/tideline-io/tideline/integration/guest"
	"github.com/tideline-io/tideline/integration/lab"
	"github.com/tideline-io/tideline/integration/own"
	"github.com/tideline-io/tideline/integration/parts"
	"github.com/tideline-io/tideline/integration/vm"
)

// serverEnv names the environment variable that leads the guest to the control plane.
const serverEnv = "TIDELINE_TEST_API_SERVER"

// vmLimit bounds the run in the VM: the kubelet alone takes minutes to start there.
const vmLimit = 38 * time.Minute

func TestMain(m *testing.M) {
	inVM := flag.Bool("vm", false, "run kubelet, proxy and containerd in a VM with cgroup v2")
	flag.Parse()
	preparations := []lab.Preparation{lab.Parts(append(append(parts.ContainerRuntime(), parts.ControlPlane()...), "kubelet")...), own.Prepare, prepareImage}
	if *inVM {
		preparations = append(preparations, vm.Prepare)
	}
	lab.Isolate(preparations...)
	if *inVM && os.Getenv(lab.Env) != "vm" {
		exit, err := runVM(context.Background())
		if err != nil {
			fmt.Fprintln(os.Stderr, "kubelet:", err)
			exit = 1
		}
		os.Exit(exit)
	}
	os.Exit(m.Run())
}

// runVM starts the control plane in the lab's namespaces and a VM there too: 10.0.2.2 of the VM is the loopback of these
// namespaces, so nothing of either is seen, or left, on the machine.
func runVM(ctx context.Context) (int, error) {
	ctx, cancel := context.WithTimeout(ctx, vmLimit)
	defer cancel()
	l, err := lab.New("host")
	if err != nil {
		return 1, err
	}
	cp, err := l.StartControlPlane(ctx, lab.ControlPlaneOptions{})
	if err != nil {
		return 1, err
	}
	defer l.Close() // the namespaces end it anyway
	if err := makeNamespaces(ctx, cp); err != nil {
		return 1, err
	}
	run := "^(TestControlPlane|TestDaemonSet)$"
	args := []string{fmt.Sprintf("-test.timeout=%v", vmLimit)}
	flag.Visit(func(f *flag.Flag) {
		switch f.Name {
		case "test.v":
			args = append(args, "-test.v="+f.Value.String())
		case "test.run":
			run = f.Value.String()
		}
	})
	image, err := imageFile()
	if err != nil {
		return 1, err
	}
	root, err := own.Root()
	if err != nil {
		return 1, err
	}
	return guest.Run(ctx, guest.Config{
		Args: append(args, "-test.run="+run), Parts: []string{"kubelet"}, Limit: vmLimit, Memory: 3072, Network: true,
		Env:   []string{serverEnv + "=https://10.0.2.2:6443", imageEnv + "=/tideline/plugin.tar", manifestsEnv + "=/tideline/nri-plugin"},
		Files: map[string]string{"/tideline/plugin.tar": image, "/tideline/nri-plugin": filepath.Join(root, "deploy", "nri-plugin")},
	})
}

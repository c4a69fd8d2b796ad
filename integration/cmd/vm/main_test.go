package main

import (
	"io"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/tideline-io/tideline/integration/vm"
)

func TestParse(t *testing.T) {
	for _, c := range []struct {
		name, line string
		want       vm.Config
		err        string
	}{
		{name: "all", line: "run -cpus 4 -mem 2048 -numa 2 -limit 1m -results out -network -module veth -port 8080:80 -file /a=b=c -file /d=e -- /bin/sh -c x",
			want: vm.Config{
				CPUs: 4, MemoryMiB: 2048, NUMANodes: 2, Limit: time.Minute, Results: "out", Network: true,
				Modules: []string{"veth"}, Ports: map[int]int{8080: 80}, Files: map[string]string{"/a": "b=c", "/d": "e"},
				Program: "/bin/sh", Args: []string{"-c", "x"},
			}},
		{name: "little", line: "run /bin/true",
			want: vm.Config{Ports: map[int]int{}, Files: map[string]string{}, Program: "/bin/true", Args: []string{}}},
		{name: "no subcommand", line: "/bin/true", err: "want the subcommand run"},
		{name: "no program", line: "run -cpus 2", err: "want a program"},
		{name: "bad file", line: "run -file /a -- x", err: `invalid value "/a" for flag -file: want guest=host`},
		{name: "bad port", line: "run -port 80 -- x", err: `invalid value "80" for flag -port: strconv.Atoi: parsing "": invalid syntax`},
	} {
		t.Run(c.name, func(t *testing.T) {
			got, err := parse(strings.Fields(c.line), io.Discard)
			if c.err != "" {
				if err == nil || err.Error() != c.err {
					t.Fatalf("got error %v, want %s", err, c.err)
				}
				return
			}
			if err != nil || !reflect.DeepEqual(got, c.want) {
				t.Errorf("got %+v, %v, want %+v", got, err, c.want)
			}
		})
	}
}

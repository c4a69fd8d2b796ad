package resctrltest

import (
	"testing"
	"time"
)

// The same table runs against a real kernel in integration/resctrl.
func TestTable(t *testing.T) {
	t.Parallel()
	for _, l := range Layouts() {
		for _, version := range []string{"6.12", "6.1"} {
			if Table(l) == nil {
				continue
			}
			l.Kernel = version
			t.Run(l.Name+" "+version, func(t *testing.T) {
				t.Parallel()
				k := New(l)
				k.SetLimbo(100 * time.Millisecond)
				results, err := RunTable(k, l, []int{k.Start(1).ID(), k.Start(1).ID()})
				if err != nil {
					t.Fatal(err)
				}
				for _, r := range results {
					if !r.OK() {
						t.Error(r)
					} else {
						t.Log(r)
					}
				}
			})
		}
	}
}

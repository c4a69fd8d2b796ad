package vm

import (
	"fmt"
	"strings"
	"testing"
)

func TestArchive(t *testing.T) {
	var a archive
	a.device("/dev/console", 0o600, 5, 1)
	a.file("/init", 0o755, []byte("12345"))
	a.file("/modules/overlay.ko", 0o644, []byte("abcd"))
	a.file("/modules/bfq.ko", 0o644, nil)
	b := a.end()

	type entry struct {
		mode         uint32
		major, minor int
		data         string
	}
	want := []string{
		fmt.Sprint("dev ", entry{mode: 0o040755}),
		fmt.Sprint("dev/console ", entry{mode: 0o020600, major: 5, minor: 1}),
		fmt.Sprint("init ", entry{mode: 0o100755, data: "12345"}),
		fmt.Sprint("modules ", entry{mode: 0o040755}),
		fmt.Sprint("modules/overlay.ko ", entry{mode: 0o100644, data: "abcd"}),
		fmt.Sprint("modules/bfq.ko ", entry{mode: 0o100644}),
		fmt.Sprint("TRAILER!!! ", entry{}),
	}
	var got []string
	for off := 0; off < len(b); {
		if string(b[off:off+6]) != "070701" {
			t.Fatalf("no header at %d: %q", off, b[off:min(off+110, len(b))])
		}
		var field [13]int
		for i := range field {
			if _, err := fmt.Sscanf(string(b[off+6+8*i:off+14+8*i]), "%x", &field[i]); err != nil {
				t.Fatal(err)
			}
		}
		align := func(n int) int { return (n + 3) &^ 3 }
		name := off + 110
		data := align(name + field[11])
		e := entry{mode: uint32(field[1]), major: field[9], minor: field[10], data: string(b[data : data+field[6]])}
		got = append(got, fmt.Sprint(string(b[name:name+field[11]-1]), " ", e))
		off = align(data + field[6])
	}
	if strings.Join(got, "\n") != strings.Join(want, "\n") {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

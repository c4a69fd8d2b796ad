package door_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/tideline-io/tideline/internal/door"
)

func TestLock(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	f, err := door.Lock(dir)
	if err != nil {
		t.Fatal(err)
	}
	_, err = door.Lock(dir)
	if want := fmt.Sprintf("pid %d holds %s/lock", os.Getpid(), dir); err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("%v, want %q", err, want)
	}
	f.Close()
	if f, err = door.Lock(dir); err != nil {
		t.Fatal(err)
	}
	f.Close()
	if _, err := door.Lock(filepath.Join(dir, "none")); err == nil {
		t.Error("a lock in no folder")
	}
}

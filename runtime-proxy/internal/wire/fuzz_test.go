package wire

import "testing"

func FuzzCreate(f *testing.F) {
	for _, msg := range createCases(f) {
		f.Add(msg)
	}
	f.Fuzz(checkCreate)
}

func FuzzStatuses(f *testing.F) {
	for _, h := range holders {
		for _, msg := range statusCases(f, h) {
			f.Add(msg)
		}
	}
	f.Fuzz(func(t *testing.T, msg []byte) {
		for _, h := range holders {
			h.check(t, msg)
		}
	})
}

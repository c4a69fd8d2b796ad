package obs

import (
	"runtime/debug"
	"testing"
)

func TestFromBuildInfo(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name string
		info debug.BuildInfo
		want string
	}{
		{"installed by version", debug.BuildInfo{Main: debug.Module{Version: "v1.2.3"}}, "v1.2.3"},
		{"built in a checkout", debug.BuildInfo{Main: debug.Module{Version: "(devel)"}, Settings: []debug.BuildSetting{
			{Key: "vcs.revision", Value: "164170c0ffee164170c0ffee"}, {Key: "vcs.modified", Value: "true"}}}, "devel 164170c0ffee, modified"},
		{"clean", debug.BuildInfo{Settings: []debug.BuildSetting{{Key: "vcs.revision", Value: "164170c"}, {Key: "vcs.modified", Value: "false"}}}, "devel 164170c"},
		{"nothing known", debug.BuildInfo{}, "devel"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			if got := fromBuildInfo(&tc.info); got != tc.want {
				t.Errorf("fromBuildInfo = %q, want %q", got, tc.want)
			}
		})
	}
}

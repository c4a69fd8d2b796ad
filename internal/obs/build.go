// Package obs tells which build runs, and makes the logger.
//
//	fmt.Println("tideline", obs.Version())
package obs

import (
	"runtime/debug"
	"strings"
)

// version is set at link time: -ldflags "-X github.com/tideline-io/tideline/internal/obs.version=v1.2.3".
var version string

// Version tells which build runs: what the linker was told, else the module's version, else the revision it was built
// from ("devel 164170c, modified"), else "devel".
func Version() string {
	if version != "" {
		return version
	}
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return "devel"
	}
	return fromBuildInfo(info)
}

func fromBuildInfo(info *debug.BuildInfo) string {
	if v := info.Main.Version; v != "" && v != "(devel)" {
		return v
	}
	out := []string{"devel"}
	modified := ""
	for _, s := range info.Settings {
		switch {
		case s.Key == "vcs.revision":
			out = append(out, s.Value[:min(len(s.Value), 12)])
		case s.Key == "vcs.modified" && s.Value == "true":
			modified = ", modified"
		}
	}
	return strings.Join(out, " ") + modified
}

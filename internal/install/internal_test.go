package install

import (
	"os"
	"slices"
	"testing"
)

func TestTOML(t *testing.T) {
	t.Parallel()
	const text = `# imports = ["no"]
version = 2
"imports" = [
  "/etc/containerd/conf.d/*.toml", # ours
  'b.toml',
]
root = "a=b"
[plugins]
  [ plugins . "io.containerd.nri.v1.nri" ] # here
    disable = true
    socket_path = '/run/x.sock'
    [plugins.'io.containerd.nri.v1.nri'.default_validator]
      enable = false
[[x]]
disable = false
open = [
`
	const section = "plugins." + nriPlugin
	for _, tc := range []struct{ section, key, want string }{
		{"", "version", "2"},
		{"", "imports", `["/etc/containerd/conf.d/*.toml",'b.toml',]`},
		{"", "root", `"a=b"`},
		{"", "disable", ""},
		{section, "disable", "true"},
		{section, "enable", ""},
		{section + ".default_validator", "enable", "false"},
		{"x", "disable", "false"},
		{"x", "open", "["},
	} {
		if got := tomlValue(text, tc.section, tc.key); got != tc.want {
			t.Errorf("[%s] %s: %q, want %q", tc.section, tc.key, got, tc.want)
		}
	}
	if got := tomlStrings(tomlValue(text, "", "imports")); !slices.Equal(got, []string{"/etc/containerd/conf.d/*.toml", "b.toml"}) {
		t.Errorf("%q", got)
	}
}

func FuzzTOML(f *testing.F) {
	data, err := os.ReadFile("testdata/node.txtar")
	if err != nil {
		f.Fatal(err)
	}
	f.Add(string(data))
	f.Add("imports = [\n[\n")
	f.Fuzz(func(t *testing.T, text string) {
		tomlStrings(tomlValue(text, "", "imports"))
		tomlValue(text, "plugins."+nriPlugin, "disable")
	})
}

func FuzzState(f *testing.F) {
	f.Add((&State{Version: 1, Door: CRI, Files: []File{{Path: "/etc/tideline/policy.yaml", SHA256: []string{"x"}}}}).text())
	f.Fuzz(func(t *testing.T, text string) {
		if s, err := parseState(text); err == nil {
			if _, err := parseState(s.text()); err != nil {
				t.Error(err)
			}
		}
	})
}

func TestWithArg(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct{ env, want string }{
		{"TIDELINE_ARGS=--mode observe -v\n", "TIDELINE_ARGS=--mode enforce -v\n"},
		{"# --mode observe\nTIDELINE_ARGS=--mode=observe\n", "# --mode observe\nTIDELINE_ARGS=--mode enforce\n"},
		{"TIDELINE_ARGS=--policy x\n", "TIDELINE_ARGS=--policy x --mode enforce\n"},
		{"TIDELINE_ARGS=\"--policy x\"\n", "TIDELINE_ARGS=\"--policy x --mode enforce\"\n"},
		{"TIDELINE_ARGS=--mode enforce\n", "TIDELINE_ARGS=--mode enforce\n"},
		{"", "TIDELINE_ARGS=--mode enforce\n"},
	} {
		if got := withArg(tc.env, modeFlag, "--mode", "enforce"); got != tc.want || modeOf(got) != "enforce" {
			t.Errorf("%q: %q, want %q", tc.env, got, tc.want)
		}
	}
}

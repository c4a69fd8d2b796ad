package images

import (
	"debug/buildinfo"
	"fmt"
	"os"
	"path/filepath"

	v1 "github.com/google/go-containerregistry/pkg/v1"
)

// Plugin is the reference of the image of WritePlugin, as
// deploy/nri-plugin/daemonset.yaml has it.
const Plugin = "tideline/nri-plugin:dev"

const pluginPath = "usr/local/bin/tideline-nri-plugin"

// WritePlugin writes an archive with the image of the NRI plugin: it and the
// CLI from the folder bin, which are static, and nothing else. Its
// architecture is the plugin's.
func WritePlugin(archive, bin string) error {
	files := []file{{name: "usr/", mode: 0o755}, {name: "usr/local/", mode: 0o755}, {name: "usr/local/bin/", mode: 0o755}}
	var arch string
	for _, at := range []string{pluginPath, "usr/local/bin/tideline"} {
		program := filepath.Join(bin, filepath.Base(at))
		data, err := os.ReadFile(program)
		if err != nil {
			return fmt.Errorf("read the program of an image: %w", err)
		}
		info, err := buildinfo.ReadFile(program)
		if err != nil {
			return fmt.Errorf("find the architecture of %s: %w", program, err)
		}
		var its string
		for _, s := range info.Settings {
			if s.Key == "GOARCH" {
				its = s.Value
			}
		}
		if arch != "" && its != arch {
			return fmt.Errorf("%s is for %q, and the other program for %q", program, its, arch)
		}
		arch = its
		files = append(files, file{name: at, mode: 0o755, data: data})
	}
	l, err := layer(files)
	if err != nil {
		return err
	}
	img, err := image(arch, v1.Config{Entrypoint: []string{"/" + pluginPath}, Env: []string{path}}, l)
	if err != nil {
		return err
	}
	return writeArchive(archive, []Image{{Ref: Plugin, Image: img}}, Plugin)
}

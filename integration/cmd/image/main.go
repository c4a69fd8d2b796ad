// Command image puts the NRI plugin and the CLI into a container image; `make image` runs it.
//
//	go run ./cmd/image -bin ../bin -o ../bin/tideline-nri-plugin.tar
package main

import (
	"flag"
	"fmt"
	"os"

	"github.com/tideline-io/tideline/integration/images"
)

func main() {
	bin := flag.String("bin", "../bin", "folder with tideline-nri-plugin and tideline")
	archive := flag.String("o", "../bin/tideline-nri-plugin.tar", "archive to write")
	flag.Parse()
	err := images.WritePlugin(*archive, *bin)
	if err != nil {
		fmt.Fprintln(os.Stderr, "image:", err)
		os.Exit(1)
	}
	fmt.Printf("%s in %s\n", images.Plugin, *archive)
}

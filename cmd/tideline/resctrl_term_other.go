//go:build !unix

package main

import "os"

// terminalHeight is not known here.
func terminalHeight(*os.File) int { return 0 }

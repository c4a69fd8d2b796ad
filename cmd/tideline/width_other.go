//go:build !unix

package main

import "os"

// terminalWidth is not known here.
func terminalWidth(*os.File) int { return 0 }

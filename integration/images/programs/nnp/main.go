// Command nnp prints its effective user. In its image it is setuid root, so
// the user is 0 unless the container runs with no_new_privs.
package main

import (
	"fmt"
	"os"
)

func main() { fmt.Printf("Effective uid: %d\n", os.Geteuid()) }

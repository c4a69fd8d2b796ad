// Command websrv stands in for nginx and httpd in the images that critest
// uses: it serves a page on the port WEB_PORT, 80 by default.
package main

import (
	"fmt"
	"net/http"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
)

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "websrv:", err)
		os.Exit(1)
	}
}

func run() error {
	// critest looks for "master process" in the command line of nginx and for
	// "httpd" in the log of httpd, so the program takes the name that it was
	// started by into its first argument.
	if name := filepath.Base(os.Args[0]); name == "nginx" || name == "httpd" {
		return syscall.Exec("/proc/self/exe", []string{name + ": master process " + name}, os.Environ())
	}
	port := os.Getenv("WEB_PORT")
	if port == "" {
		port = "80"
	}
	// critest finds the server's process through this file.
	if err := os.MkdirAll("/var/run", 0o755); err != nil {
		return err
	}
	if err := os.WriteFile("/var/run/nginx.pid", fmt.Appendf(nil, "%d\n", os.Getpid()), 0o644); err != nil {
		return err
	}
	stop := make(chan os.Signal, 1)
	signal.Notify(stop, syscall.SIGTERM, syscall.SIGQUIT, syscall.SIGINT)
	failed := make(chan error, 1)
	mux := http.NewServeMux()
	mux.HandleFunc("/", func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprintln(w, "It works! Welcome to nginx!")
	})
	go func() { failed <- http.ListenAndServe(":"+port, mux) }()
	fmt.Println(os.Args[0], "listening on", port)
	select {
	case <-stop:
		return nil
	case err := <-failed:
		return err
	}
}

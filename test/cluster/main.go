//go:build linux

package main

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
)

const usage = `usage: cluster up   [-dir FOLDER] [-bare]   start a cluster in the background
       cluster run  [-dir FOLDER] [-bare]   start a cluster, and end it at SIGINT or SIGTERM
       cluster exec [-dir FOLDER] NODE -- COMMAND...
       cluster down [-dir FOLDER]

With -bare the cluster has no Sluice and no CoreDNS. The folder has the kubeconfig while the cluster runs.
make cluster has built everything that this needs.
`

// defaultDir is the folder of the cluster of make cluster.
const defaultDir = ".cache/cluster"

func main() {
	if err := dispatch(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "cluster:", err)
		os.Exit(1)
	}
}

// dispatch runs a command, or a process of the cluster.
func dispatch(args []string) error {
	if len(args) == 0 {
		args = []string{"help"}
	}
	switch args[0] { // processes of a cluster: their first file is the pipe of child.start
	case stageInside:
		return inside()
	case stageNode:
		return runNode()
	case stageGuard:
		return guard(args[1], args[2:])
	}
	fs := flag.NewFlagSet("cluster", flag.ContinueOnError)
	fs.Usage = func() { fmt.Fprint(fs.Output(), usage) }
	dir := fs.String("dir", defaultDir, "")
	bare := fs.Bool("bare", false, "")
	background := fs.Bool("background", false, "") // set by up
	if err := fs.Parse(args[1:]); err != nil {
		return err
	}
	path, err := filepath.Abs(*dir)
	if err != nil {
		return err
	}
	o := options{dir: path, bare: *bare, background: *background}
	switch args[0] {
	case "up":
		return up(o)
	case "run":
		return run(o)
	case "down":
		return down(path)
	case "exec":
		return execOn(path, fs.Args())
	}
	fs.Usage()
	return errors.New("want up, run, exec or down")
}

// options are the flags.
type options struct {
	dir  string // absolute
	bare bool   // without Sluice and CoreDNS

	background bool // up waits until it has started
}

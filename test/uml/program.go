//go:build linux

package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// passedVars returns the environment variables that programs get from this process.
func passedVars() []string { return []string{"KUBEBUILDER_ASSETS", "KUBE_PROXY"} }

// runProgram builds a program, whose package is the first of args, runs it in a guest with the
// other arguments, and prints its output.
func runProgram(ctx context.Context, kernel string, how clock, args []string) error {
	if how != idleClock && how != realClock {
		return fmt.Errorf("want the clock %s or %s, got %q", idleClock, realClock, how)
	}
	if reason, err := os.ReadFile(kernel + ".missing"); err == nil {
		return fmt.Errorf("%s cannot run: %s", args[0], strings.TrimSpace(string(reason)))
	}
	kernel, err := filepath.Abs(kernel)
	if err != nil {
		return fmt.Errorf("find the kernel: %w", err)
	}
	dir, err := os.MkdirTemp(filepath.Dir(kernel), ".program.")
	if err != nil {
		return fmt.Errorf("create a folder for the program: %w", err)
	}
	defer func() { _ = os.RemoveAll(dir) }()
	binary := filepath.Join(dir, filepath.Base(args[0]))
	build := exec.CommandContext(ctx, "go", "build", "-o", binary, args[0])
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		return fmt.Errorf("build %s: %w\n%s", args[0], err, out)
	}
	processors, err := freeProcessors()
	if err != nil {
		return err
	}
	work, err := os.Getwd()
	if err != nil {
		return fmt.Errorf("find the working folder: %w", err)
	}
	command := append([]string{work, "/usr/bin/env"}, environment(os.LookupEnv)...)
	command = append(append(command, binary), args[1:]...)
	return guest{<-processors, how, kernel, command}.run(ctx, os.Stdout)
}

// environment returns the variables to pass on as NAME=VALUE, with absolute paths.
func environment(lookup func(string) (string, bool)) []string {
	var list []string
	for _, name := range passedVars() {
		if value, ok := lookup(name); ok {
			if abs, err := filepath.Abs(value); err == nil && value != "" {
				value = abs
			}
			list = append(list, name+"="+value)
		}
	}
	return list
}

//go:build linux

package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
)

// runProgram builds a program, whose package is the first of args, runs it in a guest with the
// other arguments, and prints its output.
func runProgram(ctx context.Context, kernel string, how clock, args []string) error {
	if how != idleClock && how != realClock {
		return fmt.Errorf("want the clock %s or %s, got %q", idleClock, realClock, how)
	}
	if reason := unsupported(runtime.GOARCH); reason != "" {
		return fmt.Errorf("%s cannot run: %s", args[0], reason)
	}
	kernel, err := find(kernel)
	if err != nil {
		return err
	}
	dir, err := os.MkdirTemp(filepath.Dir(kernel), ".program.")
	if err != nil {
		return fmt.Errorf("create a folder for the program: %w", err)
	}
	defer func() { _ = os.RemoveAll(dir) }()
	binary := filepath.Join(dir, filepath.Base(args[0]))
	build := exec.CommandContext(ctx, "go", "build", "-trimpath", "-o", binary, args[0])
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
	command := append([]string{work, "/usr/bin/env"}, environment(os.Getenv)...)
	command = append(append(command, binary), args[1:]...)
	return guest{<-processors, how, kernel, command}.run(ctx, os.Stdout)
}

// environment returns the variables of tests and programs, as NAME=VALUE: where they find other programs, with absolute
// paths, and which seeds and scenarios they run.
func environment(getenv func(string) string) []string {
	var list []string
	for _, name := range []string{"KUBEBUILDER_ASSETS", "KUBE_PROXY", "SLUICE"} {
		value := getenv(name)
		if value == "" {
			continue
		}
		if abs, err := filepath.Abs(value); err == nil {
			value = abs
		}
		list = append(list, name+"="+value)
	}
	for _, name := range []string{"FULL", "SCENARIOS", "SEEDS", "SEED"} {
		if value := getenv(name); value != "" {
			list = append(list, name+"="+value)
		}
	}
	return list
}

// Command uml runs tests on an older kernel: user mode Linux, which is a process
// of this machine. It compiles the tests of a package, boots the kernel with the
// machine's files as its root, runs the tests in there, and prints what happened
// as go test -json does. Packages are called linux-6.1/PACKAGE in the output.
//
//	uml [-kernel FILE] [-run REGEXP] [PACKAGE ...]
//
// Without a package it runs all that make test runs there (jobs).
//
// There is nothing to install in the guest, and nothing of the machine that the
// guest could change: all file systems are mounted read-only for the process that
// is the kernel, and for its root. What tests write is in memory. The process has
// its own process, mount and network namespaces, dies with the command, and is
// ended after a while.
//
// hack/test-kernel.sh builds the kernel. Where it could not, it leaves a reason
// in FILE.missing, and the command reports all tests as skipped for that reason.
package main

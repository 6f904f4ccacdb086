// Command uml runs tests on an older kernel: user mode Linux, which is a process of this machine. It compiles the tests
// of a package, boots the kernel with the machine's file systems as its root, runs the tests there, and prints the
// results like go test -json. Packages have the names linux-6.1/PACKAGE in the output.
//
//	uml [-kernel FILE] [-plane PLANE]
//	uml [-kernel FILE] [-run REGEXP] PACKAGE ...
//	uml [-kernel FILE] [-clock idle|real] -program PACKAGE [-- ARGUMENT ...]
//
// The first form runs the tests of one plane: all its scenarios, and the packages that only it uses. Without a plane
// it runs the jobs of make test-rest: all scenarios of ipvs, the scenarios of nftables and ebpf that a kernel can
// change, and packages. With FULL=1 in the environment it runs all scenarios of every plane. Guests get the variables
// FULL and SCENARIOS, which select scenarios.
//
// The third form runs a program instead, such as a benchmark, and prints its output. It passes on
// the environment variables KUBEBUILDER_ASSETS and KUBE_PROXY. With the clock idle, which tests have
// as well, time passes only while nothing runs; measurements of speed need the clock real.
//
// Nothing needs to be installed in the guest, and it cannot change the machine: all file systems are mounted read-only
// for the kernel process and for its root, and tests write to memory. The process has its own PID, mount and network
// namespaces, ends with the command, and is killed after a timeout.
//
// hack/test-kernel.sh builds the kernel. Without it the command fails, and so does a guest in which no test passed.
// Tests see by kerneltest.CompleteVar that the kernel lacks nothing, so that they fail instead of skipping. Only on a
// processor for which there is no user mode Linux are all tests reported as skipped.
package main

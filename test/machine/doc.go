// Package machine says how slow the machine is on which tests run, so that their bounds on time need not fit every
// machine. A calibration of less than half a second compares four kinds of work with the figures of a fast idle
// machine: fork and exec, a system call, a new network namespace, and computing. It measures elapsed time on two
// processors at once, so other programs and quotas count as much as a slow processor does.
//
// The runner of the tests (hack/suite) calibrates once and sets TEST_SLOWDOWN for all of them. A test binary without
// that variable calibrates when a test first calls Slowdown or Scale.
package machine

// Package endurance tests that the program lives through what happens to a node:
// it is killed again and again, the disk is full or read-only, memory is short,
// another Sluice comes, the API server is away for long, its configuration and
// its Node change, and somebody flushes all rules. Traffic flows all the while,
// and no connection is lost.
package endurance

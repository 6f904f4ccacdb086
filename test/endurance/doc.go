// Package endurance tests that the program lives through what happens to a node:
// it is killed again and again, the disk is full or read-only, memory is short,
// another Sluice comes, the API server is away for long, its configuration and
// its Node change, somebody flushes all rules, or changes those of iptables, as
// firewalld does, or keeps the lock. Traffic flows all the while, and no connection
// is lost.
package endurance

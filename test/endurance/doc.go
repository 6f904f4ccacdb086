// Package endurance tests the daemon through failures and changes of its node: it is killed repeatedly, the disk is
// full or read-only, memory is scarce, a second Sluice is started, the API server is unreachable for a long time, the
// configuration and the Node change, another program flushes all rules, edits iptables rules like firewalld, or holds
// the xtables lock. Clients connect all the time, and no connection may fail.
package endurance

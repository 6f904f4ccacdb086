// Package hostile attacks a running Sluice like a tenant, a neighbour, a local user or a careless operator could: with
// malformed manifests and objects, with bad clients of each listener, of the control socket and of Services in mode
// userspace, with packets for 127.0.0.0/8, and by editing its tables in a tight loop.
//
// Each attack is a row of one table. During the attack, good Services must answer, a change of a good Service must
// reach the kernel within the bound of the data plane, and /healthz must answer. Afterwards memory, CPU time and log
// size must be within their bounds, and after a cleanup nothing of the daemon may remain.
//
// The bounds are for a fast machine, scaled by test/machine. Each attack runs in the plane where it matters; with
// FULL=1 in others as well.
//
//	go test ./test/hostile                                 # about a minute and a half
//	go test -v -run 'Attacks/nftables/idle' ./test/hostile
package hostile

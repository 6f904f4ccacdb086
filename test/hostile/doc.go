// Package hostile attacks a running Sluice the way a tenant, a neighbour, a
// local user and a clumsy operator could: with odd manifests and objects, as a
// stranger at each listener and at the control socket, with packets for
// 127.0.0.0/8, and by editing its tables in a tight loop.
//
// Each attack is a row of one table. While it lasts, good Services must answer,
// a change of a good Service must reach the kernel within the bound of the data
// plane, and /healthz must answer; afterwards the bounds on memory, CPU and log
// must hold, and the daemon must leave nothing behind.
//
//	go test ./test/hostile                                 # all, about two minutes
//	go test -v -run 'Attacks/nftables/idle' ./test/hostile
package hostile

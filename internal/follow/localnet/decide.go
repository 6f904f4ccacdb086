package localnet

import "github.com/sluice-proxy/sluice/internal/kernel/nft"

// purpose is the use of 127.0.0.0/8.
type purpose int

const (
	// unknown: the configuration and the node are not known yet. The parameter stays
	// as it is, and is guarded.
	unknown purpose = iota
	// serving: NodePorts are served on 127.0.0.0/8, which must be routed.
	serving
	// unused: no NodePort needs 127.0.0.0/8 to be routed.
	unused
)

// presence is the state of the guard in the kernel.
type presence int

const (
	absent  presence = iota
	damaged          // a part is missing
	intact
)

// found is the state of the kernel.
type found struct {
	table  *nft.State // of the guard; nil: there is none
	guard  presence
	marked bool // the guard says that Sluice set the parameter
	all    bool // net.ipv4.conf.all.route_localnet is 1
	others bool // that of some interface other than lo is 1, or that of interfaces to come
}

func (f found) routed() bool { return f.all || f.others }

// action is one write to the kernel.
type action int

const (
	guard       action = iota // make or repair the guard; the mark stays as it is
	guardMarked               // the same, and mark the parameter as set by Sluice
	unmark                    // remove the mark; the guard stays
	unguard                   // remove the guard and its mark
	switchOn                  // set the parameter to 1
	switchOff                 // set the parameter to 0
)

// decide returns the actions in order. After each action, and after a failure of any,
// the guard exists whenever the parameter is 1.
func decide(f found, p purpose) []action {
	switch p {
	case serving:
		return serve(f)
	case unused:
		return withdraw(f)
	case unknown:
	}
	if f.guard != intact && (f.routed() || f.guard == damaged) {
		return []action{guard}
	}
	return nil
}

func serve(f found) []action {
	var actions []action
	switch {
	case !f.all && !f.marked:
		actions = append(actions, guardMarked)
	case f.guard != intact:
		actions = append(actions, guard)
	}
	if !f.all {
		actions = append(actions, switchOn)
	}
	return actions
}

// withdraw puts the parameter back to 0 only if Sluice set it. A parameter that
// another program set stays, and so does the guard.
func withdraw(f found) []action {
	if f.guard == absent && !f.routed() {
		return nil
	}
	var actions []action
	if f.routed() && f.guard != intact {
		actions = append(actions, guard)
	}
	if f.marked && f.all {
		actions = append(actions, switchOff)
		f.all = false
	}
	switch {
	case !f.routed():
		actions = append(actions, unguard)
	case f.marked:
		actions = append(actions, unmark)
	}
	return actions
}

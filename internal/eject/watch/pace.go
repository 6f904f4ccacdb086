package watch

import "time"

const (
	// perEntry is the CPU time to read an entry. The pacer computes the cost of a poll from the walks and the entries,
	// because the measured CPU time includes packets that the kernel processes during a walk.
	perEntry = 4 * time.Microsecond

	// Polls take one part in rest of a CPU. While a decision is near they may use up the credit, which is regained at one
	// part in regained. Together this is a hundredth of a CPU.
	rest     = 125
	credit   = 300 * time.Millisecond
	regained = 500
)

// pacer computes the pauses between polls. It begins with the whole credit.
type pacer struct {
	walk time.Duration // CPU time of a walk through the table, without packets; 0 before the first poll
	left time.Duration // remaining credit
}

// poll is the cost of a poll, and the wanted time of the next one.
type poll struct {
	cpu   time.Duration
	read  read
	pause time.Duration // the shortest pause until the next poll
	near  time.Duration // time until a decision is possible; 0 if none is near
}

// read is the amount that a poll read from the table.
type read struct{ walks, entries int }

// pause returns the time until the next poll.
func (p *pacer) pause(l poll) time.Duration {
	one := l.cpu / time.Duration(max(1, l.read.walks))
	if p.walk += p.walk / 200; p.walk == 0 || one < p.walk { // grows slowly, in case the table grew
		p.walk = one
	}
	took := time.Duration(l.read.walks)*p.walk + time.Duration(l.read.entries)*perEntry
	pause := max(l.pause, rest*took)
	if l.near > 0 && l.near < pause && p.left > took {
		pause, p.left = l.near, p.left-took
	}
	p.left = min(credit, p.left+pause/regained)
	return pause
}

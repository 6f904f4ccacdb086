package watch

import "time"

const (
	// A walk through the table takes the same time as long as its size is the same. More CPU time is that of packets,
	// which the kernel processes in between; reading entries is added.
	perEntry = 4 * time.Microsecond

	// Looks take one part in 125 of a CPU. While a decision is near they take this much more, which comes back at one
	// part in 500: together a hundredth.
	rest     = 125
	credit   = 300 * time.Millisecond
	regained = 500
)

// pacer decides how long to pause between looks.
type pacer struct {
	walk time.Duration // that a walk takes without packets; 0: not known yet
	left time.Duration // of the credit
}

// look is what a look took, and when the next is wanted.
type look struct {
	cpu   time.Duration
	read  read
	pause time.Duration // at least, until the next
	near  time.Duration // until a decision is possible; 0: none is near
}

// read is how much of the table was read.
type read struct{ walks, entries int }

func newPacer() *pacer { return &pacer{left: credit} }

// pause returns the time until the next look.
func (p *pacer) pause(l look) time.Duration {
	one := l.cpu / time.Duration(max(1, l.read.walks))
	if p.walk += p.walk / 200; p.walk == 0 || one < p.walk { // it grows slowly if the table did
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

package watch

import "time"

const (
	// A walk through the table takes the same time as long as its size is the same. More CPU time is that of packets,
	// which the kernel processes in between; reading entries is added.
	perEntry = 4 * time.Microsecond

	// Looks take a hundredth of one CPU. While a decision is near they take this much more, which comes back at a two
	// hundredth.
	rest     = 100
	credit   = 300 * time.Millisecond
	regained = 200
)

// pacer decides how long to pause between looks.
type pacer struct {
	walk time.Duration // that a walk takes without packets; 0: not known yet
	left time.Duration // of the credit
}

// look is what a look took, and when the next is wanted.
type look struct {
	cpu     time.Duration
	entries int           // that were read
	pause   time.Duration // at least, until the next
	near    time.Duration // until a decision is possible; 0: none is near
}

func newPacer() *pacer { return &pacer{left: credit} }

// pause returns the time until the next look.
func (p *pacer) pause(l look) time.Duration {
	if p.walk += p.walk / 200; p.walk == 0 || l.cpu < p.walk { // it grows slowly if the table did
		p.walk = l.cpu
	}
	took := p.walk + time.Duration(l.entries)*perEntry
	pause := max(l.pause, rest*took)
	if l.near > 0 && l.near < pause && p.left > took {
		pause, p.left = l.near, p.left-took
	}
	p.left = min(credit, p.left+pause/regained)
	return pause
}

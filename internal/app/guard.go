package app

import (
	"context"
	"log/slog"
	"time"

	"github.com/sluice-proxy/sluice/internal/plane"
	"github.com/sluice-proxy/sluice/internal/proxy"
)

// guard has what other programs change put right: at once, unless they keep at
// it. Two programs that undo each other's work would take all of a CPU.
type guard struct {
	loop  comparer
	log   *slog.Logger
	edits chan plane.Edit
	calm  int       // repairs at once left
	last  time.Time // repair
}

// comparer compares everything with the kernel.
type comparer interface {
	Compare(ctx context.Context, why proxy.Cause) error
}

const (
	mostAtOnce    = 10          // repairs without a pause
	pause         = time.Second // from one repair to the next after that
	calmAfter     = time.Minute // without an edit, all is forgiven, and told if it was much
	comparePeriod = time.Hour   // between comparisons that nobody asked for
)

func newGuard(loop comparer, log *slog.Logger) *guard {
	return &guard{loop: loop, log: log, edits: make(chan plane.Edit, 1), calm: mostAtOnce}
}

// edited takes note of an edit. One that waits stands for all that follow.
func (g *guard) edited(e plane.Edit) {
	select {
	case g.edits <- e:
	default:
	}
}

// run has repairs made until the context ends. Now and then everything is
// compared all the same, in case the kernel kept something to itself.
func (g *guard) run(ctx context.Context) error {
	period := time.NewTicker(comparePeriod)
	defer period.Stop()
	over := time.NewTimer(calmAfter)
	defer over.Stop()
	for {
		why := proxy.Period
		select {
		case <-ctx.Done():
			return nil
		case <-over.C:
			g.forgive()
			continue
		case <-period.C:
		case e := <-g.edits:
			why = proxy.ForeignEdit
			g.tell(e)
			if !g.rest(ctx) {
				return nil
			}
		}
		if err := g.loop.Compare(ctx, why); err != nil {
			return nil // the context ended
		}
		if why == proxy.ForeignEdit {
			over.Reset(calmAfter)
		}
	}
}

// forgive begins anew when edits have ended, and logs that if it was logged that
// they do not.
func (g *guard) forgive() {
	if g.calm <= 0 {
		g.log.Info("No program changes our rules any more", "repairs", mostAtOnce-g.calm)
	}
	g.calm = mostAtOnce
}

// tell logs an edit; when they do not end, that it goes on.
func (g *guard) tell(e plane.Edit) {
	g.calm--
	switch {
	case g.calm > 0:
		g.log.Warn("Another program changed our rules, putting them right", "what", e.What, "by", e.By)
	case g.calm == 0:
		g.log.Error("Another program keeps changing our rules; they are put right once a second", "what", e.What, "by", e.By)
	}
}

// rest waits before a repair if there were many and the last was a moment ago;
// false: the context ended.
func (g *guard) rest(ctx context.Context) bool {
	defer func() { g.last = time.Now() }()
	if g.calm >= 0 {
		return true
	}
	timer := time.NewTimer(pause - time.Since(g.last))
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C:
		return true
	}
}

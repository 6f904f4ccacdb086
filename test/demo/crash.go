//go:build linux

package main

import (
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sluice-proxy/sluice/test/lab"
)

// crash kills sluice while traffic flows, and starts it again.
func (t *tour) crash() error {
	const connections = 20
	t.head("Crash: kill -9 while traffic flows")
	talk, err := t.converse(connections)
	if err != nil {
		t.fail("%v", err)
		return nil
	}
	flow := startTraffic(t.webWays())
	moment()
	_, err = t.sluice.signal(unix.SIGKILL)
	died := time.Now()
	var ready synced
	if err == nil {
		pause()
		ready, err = t.run()
		pause()
	}
	made := flow.stop()
	asked, unanswered := talk.stop()
	if err != nil {
		return err
	}
	down := t.sluice.born.Sub(died)
	t.say("Killed. %s later started again, and back after %s.", millis(down), millis(ready.when.Sub(t.sluice.born)))
	t.undisturbed(score{what: "Crash", connections: connections, made: made, asked: asked, unanswered: unanswered})
	if ready.steps != 0 {
		t.fail("The restart wrote %d changes; nothing had changed.", ready.steps)
		return nil
	}
	t.pass("The restart found everything in place and wrote %s.", t.paint(strong, "0 changes"))
	t.learn("Restart", "wrote 0 changes; %d open connections undisturbed", connections)
	return nil
}

// talk is open connections that are in use.
type talk struct {
	quit chan struct{}
	wait sync.WaitGroup

	mu                sync.Mutex
	asked, unanswered int
}

// converse opens connections over all ways and keeps asking on each.
func (t *tour) converse(connections int) (*talk, error) {
	c := &talk{quit: make(chan struct{})}
	for i := range connections {
		p := t.ways()[i%len(t.ways())]
		f, r := p.from.Open(lab.Probe{Protocol: lab.TCP, To: p.to})
		if f == nil {
			c.stop()
			return nil, r.Err
		}
		c.wait.Go(func() { c.hold(f) })
	}
	return c, nil
}

func (c *talk) hold(f *lab.Flow) {
	defer f.Close()
	for {
		select {
		case <-c.quit:
			return
		case <-time.After(20 * time.Millisecond):
		}
		r := f.Ask([]byte("still there?"))
		c.mu.Lock()
		c.asked++
		if r.Outcome != lab.Answered {
			c.unanswered++
		}
		c.mu.Unlock()
	}
}

// stop ends the connections and returns the score.
func (c *talk) stop() (asked, unanswered int) {
	close(c.quit)
	c.wait.Wait()
	return c.asked, c.unanswered
}

package app

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"os"
	"strings"
	"time"

	"github.com/sluice-proxy/sluice/internal/admin"
	"github.com/sluice-proxy/sluice/internal/config"
	"github.com/sluice-proxy/sluice/internal/eject/watch"
	"github.com/sluice-proxy/sluice/internal/event"
	"github.com/sluice-proxy/sluice/internal/handover"
	"github.com/sluice-proxy/sluice/internal/handover/listen"
	"github.com/sluice-proxy/sluice/internal/health"
	serviceports "github.com/sluice-proxy/sluice/internal/health/nodeport"
	"github.com/sluice-proxy/sluice/internal/plane"
	"github.com/sluice-proxy/sluice/internal/reload"
	"github.com/sluice-proxy/sluice/internal/source/kube"
	"github.com/sluice-proxy/sluice/internal/web"
)

// carried is what a daemon passes to the next run of the program in addition to its open ports and its lock.
type carried struct {
	Health  health.Before
	Ports   serviceports.Before
	Reloads reload.Count

	Ejections watch.Saved
}

// Names in a Handover.
const (
	carriedName = "daemon"
	lockName    = "lock"
)

// newReloader returns the part that follows the configuration file.
func (d *daemon) newReloader() *reload.Reloader {
	o := d.o
	return reload.New(reload.Options{
		File: o.File, Config: o.Config, Load: o.Load, Log: o.Log, Before: d.before.Reloads,
		Possible: d.possible, Delay: func() time.Duration { return reloadDelay(o.Config) }, Replace: d.replace,
		Refused: func(err error) { d.record(event.ConfigurationRefused(err)) },
	})
}

// reloadDelay returns a random wait before a changed configuration takes effect. It
// is 0 with manifests, as it protects the API server.
func reloadDelay(c *config.Config) time.Duration {
	if c.ReloadJitter <= 0 || len(c.Manifests) > 0 {
		return 0
	}
	return rand.N(c.ReloadJitter)
}

// possible returns why a new run of the program would not work with a configuration, or
// could not read all Services that this run has read.
func (d *daemon) possible(ctx context.Context, c *config.Config) error {
	next := d.o
	next.Config = c
	if err := errors.Join(handover.Possible(), Check(ctx, next), d.sourcePossible(c)); err != nil {
		return err
	}
	return listenPossible(ctx, d.o.Config, c, listen.Opener{NetNS: d.o.NetNS}.Listen)
}

// sourcePossible returns why a new run could not read all Services that this one has read.
func (d *daemon) sourcePossible(c *config.Config) error {
	s := d.source.State()
	isKube := len(c.Manifests) == 0
	if isKube {
		if _, err := kube.Dial(kube.Connection(c.Client)); err != nil {
			return err
		}
	}
	switch {
	case !d.health.Verdict().Started: // no Services are known yet
		return nil
	case isKube && !s.Connected && c.Client == d.o.Config.Client:
		return fmt.Errorf("the API server does not answer, and a new start has to list all Services: %s", s.Trouble)
	case s.Unrepeatable != "":
		return errors.New("a new start could not read all Services again: " + s.Unrepeatable)
	}
	return nil
}

// listenPossible tries the servers' addresses that change.
func listenPossible(ctx context.Context, old, next *config.Config, try web.Listen) error {
	own := map[uint16]bool{old.Healthz.Port(): true, old.Metrics.Port(): true}
	for _, at := range []netip.AddrPort{next.Healthz, next.Metrics} {
		if !at.IsValid() || own[at.Port()] {
			continue
		}
		l, err := try(ctx, "tcp", at)
		if err == nil {
			err = l.Close()
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func (d *daemon) replace(ctx context.Context) error {
	c := carried{Reloads: d.reload.State().Count}
	c.Reloads.Accepted++
	h, err := d.handOver(ctx, c)
	if err != nil {
		return err
	}
	d.o.Log.Info("Restarting in the same process with the changed configuration", "file", d.o.File)
	d.o.Replace(h)
	return nil
}

// handOver returns what the next run receives. It keeps the lock and the ports open, whatever this run closes.
func (d *daemon) handOver(ctx context.Context, c carried) (_ *handover.Handover, err error) {
	if d.replaced.Swap(true) {
		return nil, errors.New("a handover has begun already")
	}
	defer func() { d.replaced.Store(err == nil) }()
	if v := d.health.Verdict(); v.Programmed() {
		c.Health = health.Before{LastUpdated: v.LastUpdated, Eligible: v.Eligible}
	}
	viewing, cancel := context.WithTimeout(ctx, answerTime)
	defer cancel()
	if v, err := d.node.Loop().View(viewing); err == nil { // without it, ports answer after the first write
		c.Ports = serviceports.BeforeOf(v.Routes)
	}
	if d.ejection != nil {
		c.Ejections = d.ejection.Saved()
	}
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	h := &handover.Handover{Files: map[string]*os.File{}}
	if err := h.Put(carriedName, c); err != nil {
		return nil, err
	}
	if d.held != nil {
		lock, err := d.held.File()
		if err != nil {
			return nil, err
		}
		h.Files[lockName] = lock
	}
	ports, err := d.listen.Files()
	if err != nil {
		h.Close()
		return nil, err
	}
	maps.Copy(h.Files, ports)
	d.handOverPlane(h)
	return h, nil
}

// handOverPlane adds what the plane hands over when its parts have ended.
func (d *daemon) handOverPlane(h *handover.Handover) {
	if d.plane.HandOver == nil {
		return
	}
	finish := d.plane.HandOver()
	h.Last = func(h *handover.Handover) error {
		ctx, cancel := context.WithTimeout(context.Background(), planeTime)
		defer cancel()
		in, err := finish(ctx)
		if err != nil {
			return fmt.Errorf("clients are refused until the next run listens: %w", err)
		}
		prefix := planePrefix(d.o.kind())
		for name, f := range in.Sockets {
			h.Files[prefix+name] = f
		}
		if in.State == nil {
			return nil
		}
		return h.Put(prefix, in.State)
	}
}

// planeTime is how long a plane may take to hand over what it has.
const planeTime = 5 * time.Second

// planesPrefix begins the names of what planes hand over.
const planesPrefix = "plane "

// planePrefix begins the names of what one plane hands over.
func planePrefix(k plane.Kind) string { return planesPrefix + k.Mode + " " + string(k.Bind) + " " }

// inherited returns what the plane has handed over in the previous run of the program. It closes the sockets of
// another mode.
func (o Options) inherited() (plane.Inherited, error) {
	in, prefix := plane.Inherited{Sockets: map[string]*os.File{}}, planePrefix(o.kind())
	for name := range o.Before.Files {
		if !strings.HasPrefix(name, planesPrefix) {
			continue
		}
		f := o.Before.Take(name)
		if of, own := strings.CutPrefix(name, prefix); own {
			in.Sockets[of] = f
		} else {
			_ = f.Close() // a listening socket has nothing to flush
		}
	}
	return in, o.Before.Get(prefix, &in.State)
}

func (d *daemon) takeLock(ctx context.Context) (err error) {
	if file := d.o.Before.Take(lockName); file != nil {
		d.held, err = admin.Adopt(file, d.lock.options)
		return err
	}
	d.held, err = d.lock.acquireWithin(ctx, killTimeout)
	if errors.Is(err, admin.ErrPrivilege) && len(d.o.Config.Manifests) > 0 {
		err = fmt.Errorf("%w; to serve only programs of this host, without privileges, add: "+
			"--proxy-mode userspace --bind loopback", err)
	}
	return err
}

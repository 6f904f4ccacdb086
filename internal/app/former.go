package app

import (
	"context"
	"fmt"
	"log/slog"

	"github.com/sluice-proxy/sluice/internal/plane"
	"github.com/sluice-proxy/sluice/internal/takeover"
)

// former is a mode of the previous run of the program that still has connections.
type former struct {
	kind plane.Kind
	*plane.Rest
}

// inherited returns what the previous run has handed over for each mode.
func (o Options) inherited() (map[string]*plane.Inherited, error) {
	all := map[string]*plane.Inherited{}
	for _, k := range o.Kinds {
		in, name := &plane.Inherited{}, planeName(k)
		if err := o.Before.Get(name, &in.State); err != nil {
			return nil, err
		}
		if in.State != nil {
			in.Numbers, all[name] = o.Before.Numbers, in
			o.Before.Forget(name)
		}
	}
	switch {
	case len(all) > 0:
		o.Before.TakeDescriptors() // the planes close them
	case o.Before != nil && len(o.Before.Descriptors) > 0:
		o.Log.Warn("Connections that the previous run forwarded itself end, as this version cannot go on with them")
		o.Before.Discard()
	}
	return all, nil
}

// goOn lets other modes go on with what they have handed over, until rules of this one have replaced theirs.
func goOn(o Options, s plane.Setup, inherited map[string]*plane.Inherited, replaced <-chan struct{}) []former {
	var all []former
	for _, k := range o.Kinds {
		s.Inherited = inherited[planeName(k)]
		if s.Inherited == nil || k.GoOn == nil || planeName(k) == planeName(o.kind()) {
			continue
		}
		r, err := k.GoOn(s, replaced)
		if err != nil {
			o.Log.Warn("Connections of the mode before this one end", "mode", k.Mode, "error", err)
			continue
		}
		all = append(all, former{k, r})
	}
	return all
}

// part forwards the connections. The Services of this mode do not depend on it.
func (f former) part(log *slog.Logger) plane.Part {
	return plane.Part{Run: func(ctx context.Context) error {
		if err := f.Run(ctx); err != nil {
			log.Warn("Connections of the mode before this one have ended", "mode", f.kind.Mode, "error", err)
		}
		return nil
	}}
}

// inUse returns a takeover.Later while the mode has connections, which need what its mode has left on this host.
func (f former) inUse() error {
	select {
	case <-f.Over:
		return nil
	default:
		return takeover.Later(fmt.Sprintf("connections of that mode are open (%d)", f.Open()))
	}
}

// removeUnused removes what a plane has left on this host, once no former mode uses it.
func removeUnused(ctx context.Context, k plane.Kind, o Options, formers []former) ([]string, error) {
	for _, f := range formers {
		if planeName(f.kind) != planeName(k) {
			continue
		}
		if err := f.inUse(); err != nil {
			return nil, err
		}
	}
	return removeRules(ctx, k, o)
}

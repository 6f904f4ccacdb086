package inspect

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"iter"
	"net/http"
	"net/netip"
	"slices"
	"time"

	"github.com/sluice-proxy/sluice/internal/cluster"
	"github.com/sluice-proxy/sluice/internal/drain"
	"github.com/sluice-proxy/sluice/internal/route"
	"github.com/sluice-proxy/sluice/internal/text"
)

// Drain is how a wait for a pod ended.
type Drain struct {
	Pod     string  `json:"pod"`
	Drained bool    `json:"drained"`
	Summary string  `json:"summary"`
	Seconds float64 `json:"seconds"`
	Live    int     `json:"liveConnections"`

	Flows []drain.Flow `json:"connections,omitempty"` // the first of them
}

// Print writes the summary, and what is left.
func (d Drain) Print(out *text.Columns) {
	out.Printf("%s\n", d.Summary)
	if len(d.Flows) == 0 {
		return
	}
	out.Row("CLIENT", "TO", "POD", "PROTOCOL", "SINCE", "IDLE", "BYTES")
	for _, f := range d.Flows {
		idle, bytes := "-", "-"
		if f.Idle != nil {
			idle = text.Duration(time.Duration(*f.Idle * float64(time.Second)))
		}
		if f.Bytes != nil {
			bytes = text.Bytes(int64(*f.Bytes)) //nolint:gosec // no connection has 8 EB
		}
		out.Row(f.Client.String(), f.To.String(), f.Backend.String(), f.Protocol, f.Since.Format(time.TimeOnly), idle, bytes)
	}
	if more := d.Live - len(d.Flows); more > 0 {
		out.Printf("and %d more\n", more)
	}
}

// Draining is a wait that runs.
type Draining drain.Running

// Rows returns a row.
func (d Draining) Rows() []text.Row {
	return []text.Row{{Cells: []text.Cell{
		{"POD", d.Pod},
		{"LIVE", fmt.Sprint(d.Live)},
		{"SINCE", d.Since.Format(time.TimeOnly)},
		{"UNTIL", d.Until.Format(time.TimeOnly)},
	}}}
}

// errNoTable is the error of a system without conntrack.
var errNoTable = errors.New("this system has no table of connections, so it is not known which connections a pod has")

// patient lets an answer come after the longest wait.
func patient(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(drain.MaxWait + answerTime)) // else it ends early
		h.ServeHTTP(w, r)
	})
}

// drain waits for the pod ?pod=, NAMESPACE/NAME or an address, for at most ?wait=.
func (i *Inspector) drain(r *http.Request) (d Drain, err error) {
	limit, err := time.ParseDuration(r.FormValue("wait"))
	if err != nil || limit <= 0 || limit > drain.MaxWait {
		return d, fmt.Errorf("wait %q: want a time up to %s, such as 30s", r.FormValue("wait"), drain.MaxWait)
	}
	if i.opt.Drain == nil {
		return d, errNoTable
	}
	pod, err := i.pod(r.Context(), r.FormValue("pod"))
	if err != nil {
		return d, err
	}
	result, err := i.opt.Drain.Wait(r.Context(), pod, limit)
	if err != nil {
		return d, err
	}
	return Drain{
		Pod: pod.String(), Drained: result.Drained, Summary: drain.Sentence(pod, result), Seconds: result.Took.Seconds(),
		Live: result.Live, Flows: result.Flows,
	}, nil
}

func (i *Inspector) draining(*http.Request) (iter.Seq[Draining], error) {
	if i.opt.Drain == nil {
		return nil, errNoTable
	}
	var all []Draining
	for _, r := range i.opt.Drain.Running() {
		all = append(all, Draining(r))
	}
	return slices.Values(all), nil
}

// pod returns the pod of this node with a name, or with an address.
func (i *Inspector) pod(ctx context.Context, name string) (drain.Pod, error) {
	if addr, err := netip.ParseAddr(name); err == nil {
		pod, err := i.PodAt(ctx, addr.Unmap())
		if err != nil { // it may be in no EndpointSlice any more
			pod = drain.Pod{Addrs: []netip.Addr{addr.Unmap()}}
		}
		return pod, nil
	}
	f, err := ParseFilter(name, "")
	if err != nil {
		return drain.Pod{}, err
	}
	return i.findPod(ctx, f, cluster.Name{Namespace: cmp.Or(f.Namespace, "default"), Name: f.Name}, netip.Addr{})
}

// PodAt returns the pod of this node with an address.
func (i *Inspector) PodAt(ctx context.Context, at netip.Addr) (drain.Pod, error) {
	return i.findPod(ctx, Filter{Name: at.String()}, cluster.Name{}, at)
}

// findPod returns the pod of this node with a name, or with an address, and all of its addresses.
func (i *Inspector) findPod(ctx context.Context, f Filter, name cluster.Name, at netip.Addr) (drain.Pod, error) {
	v, err := i.view(ctx)
	if err != nil {
		return drain.Pod{}, err
	}
	for of, addr := range v.Routes.Pods() {
		if addr == at {
			name = of
			break
		}
	}
	pod := drain.Pod{Name: name}
	for of, addr := range v.Routes.Pods() {
		if of == name && !slices.Contains(pod.Addrs, addr) {
			pod.Addrs = append(pod.Addrs, addr)
		}
	}
	switch {
	case len(pod.Addrs) > 0:
		return pod, nil
	case at.IsValid() && isHere(v.Routes, at):
		return drain.Pod{Addrs: []netip.Addr{at}}, nil
	}
	return drain.Pod{}, notFoundError{"pod", f}
}

// isHere reports whether an address is that of a backend that may be on this node.
func isHere(all *route.Snapshot, at netip.Addr) bool {
	for svc := range all.Services() {
		for i := range svc.Ports {
			if slices.Contains(svc.Ports[i].Here, at) {
				return true
			}
		}
	}
	return false
}

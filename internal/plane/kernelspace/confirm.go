package kernelspace

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/sluice-proxy/sluice/internal/kernel/hns"
)

// settings are the properties of a load balancer that HNS may return in another form than they were written.
type settings struct {
	source netip.Addr
	flags  hns.Flags
	other  bool // there are properties that this plane does not write
}

// content is the part of a load balancer that HNS stores.
type content struct {
	settings
	target uint16
	ids    string // of its endpoints, sorted
}

// content returns the content of a load balancer with this value and these endpoints.
func (v value) content(ids []string) content {
	sorted := slices.Sorted(slices.Values(ids))
	return content{settings{v.source, v.flags, v.other}, v.target, strings.Join(sorted, " ")}
}

func (b balancer) content() content { return b.value.content(b.ids) }

// sent is a load balancer that was written since the last Refresh, and that HNS confirmed.
type sent struct {
	before, now content // before the first change and after the last one; equal if the load balancer was only created
	created     bool    // since the last Refresh, with the settings of now
}

// forms contains the load balancers whose settings HNS returns in another form than written, by ID.
type forms map[string]form

type form struct{ written, returned settings }

// findings are properties of HNS that a comparison has detected.
type findings struct {
	ignored bool // HNS ignored a change in place, as some versions do (kubernetes/kubernetes#131466)
	partial bool // HNS applied only a part of a change in place
	form    *form
}

// confirm compares the load balancers written since the last Refresh with those that HNS returns. If a created load balancer has other
// settings, confirm records that form, and the state holds the written settings as long as HNS returns the same form. If one that was
// changed in place differs, the next write replaces it.
func (w *writer) confirm(s *state) (found findings) {
	now, anew, exists := forms{}, map[string]bool{}, s.ids()
	for k, b := range s.balancers {
		read := b.content()
		wrote, was := w.sent[b.id]
		f, has := w.forms[b.id]
		if was && wrote.created && read.settings != wrote.now.settings {
			f, has = form{wrote.now.settings, read.settings}, true
			found.form = &f
		}
		if has {
			now[b.id] = f
		}
		if has && read.settings == f.returned {
			b.source, b.flags, b.other = f.written.source, f.written.flags, f.written.other
			s.balancers[k] = b
		}
		differs := was && wrote.before != wrote.now && b.content() != wrote.now && all(exists, strings.Fields(wrote.now.ids))
		if w.anew[b.id] || differs {
			anew[b.id] = true
		}
		if differs {
			ignored := wrote.before.ids != wrote.now.ids && read.ids == wrote.before.ids
			found.ignored, found.partial = found.ignored || ignored, found.partial || !ignored
		}
	}
	w.forms, w.anew, w.sent = now, anew, map[string]sent{}
	return found
}

// doubts reports whether a load balancer refers to an endpoint that was not read, or lacks one that was written and read.
func (w *writer) doubts(s *state, list []hns.LoadBalancer) bool {
	exists := s.ids()
	return slices.ContainsFunc(list, func(l hns.LoadBalancer) bool {
		wrote, was := w.sent[l.ID]
		lacks := was && value{}.content(l.Endpoints).ids != wrote.now.ids && all(exists, strings.Fields(wrote.now.ids))
		return lacks || !all(exists, l.Endpoints)
	})
}

// all reports whether a set has all members of a list.
func all(set map[string]bool, list []string) bool {
	return !slices.ContainsFunc(list, func(id string) bool { return !set[id] })
}

// learn records the findings of a comparison, and reports them.
func (p *Plane) learn(f findings) {
	if f.ignored {
		p.writer.remake = true
		p.note("HNS confirmed changes of load balancers in place, and did not make them (kubernetes/kubernetes#131466); " +
			"from now on Sluice makes changed load balancers anew")
	}
	if f.partial && !p.writer.remake {
		p.note("HNS confirmed changes of load balancers in place, and made them in part: Sluice makes those load balancers anew")
	}
	if f.form != nil && !p.formNoted {
		p.formNoted = true
		p.note(fmt.Sprintf("HNS returns settings of load balancers in another form than they were written, such as %s for %s; "+
			"Sluice regards them as equal", f.form.returned, f.form.written))
	}
}

// String prints the settings.
func (s settings) String() string {
	text := fmt.Sprintf("source %s, %+v", s.source, s.flags)
	if s.other {
		text += " and unknown properties"
	}
	return text
}

// inPlace reports whether the load balancer with an ID can be changed in place.
func (w *writer) inPlace(id string) bool { return w.state.features.Modify && !w.remake && !w.anew[id] }

// noteSent records a load balancer that HNS confirmed; had is its content before, nil if it was created.
func (w *writer) noteSent(id string, had *content, now content) {
	wrote, was := w.sent[id]
	switch {
	case had == nil:
		wrote = sent{before: now, created: true}
	case !was:
		wrote = sent{before: *had}
	default:
		wrote.created = wrote.created && wrote.now.settings == now.settings
	}
	wrote.now = now
	w.sent[id] = wrote
}

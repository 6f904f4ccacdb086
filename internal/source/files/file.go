package files

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net/netip"
	"os"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/sluice-proxy/sluice/internal/cluster"
	"github.com/sluice-proxy/sluice/internal/route"
	"github.com/sluice-proxy/sluice/internal/source/convert"
	"github.com/sluice-proxy/sluice/internal/textfile"
)

// settle is how long a file must stay unchanged before it is read, or deleted: most
// programs write a file in steps. A file that is replaced by another one is read at once.
const settle = 25 * time.Millisecond

// maxSettle is how long a file that changes all the time is not read.
const maxSettle = 2 * time.Second

type file struct {
	path     string
	objects  []object    // of its last good content
	content  content     // when it was last read; without objects
	info     fs.FileInfo // when it was last read; nil if it was not, or is a stream
	err      error       // of the last attempt to read it
	isStream bool
	wasRead  bool // at least once
	isKept   bool // the present content is not used, or cannot be read

	pending fs.FileInfo // a state that must settle; nil if the file is missing
	since   time.Time   // when that began; zero: nothing must settle
	changed time.Time   // when the file changed first since it was read, if since is not zero
}

func (s *Source) sorted() []*file {
	return slices.SortedFunc(maps.Values(s.files), func(a, b *file) int { return strings.Compare(a.path, b.path) })
}

// scan reads the files that changed since they were read, and updates the Store.
func (s *Source) scan(ctx context.Context, now time.Time) {
	s.next, s.unlisted = time.Time{}, 0
	listed := map[string]bool{}
	var kept []*root
	for _, r := range s.roots {
		if r.isStream {
			continue
		}
		paths, err := r.list()
		if errors.Is(err, fs.ErrNotExist) && !r.folder { // a file that may be missing
			if s.loaded {
				err = nil
			} else {
				s.unlisted++
			}
		} else if err != nil {
			s.unlisted++
			kept = append(kept, r)
		}
		s.report.Set("path "+r.path, r.problems(paths, err))
		for _, path := range paths {
			listed[path] = true
			if s.files[path] == nil {
				s.files[path] = &file{path: path}
			}
		}
	}
	for _, f := range s.sorted() {
		switch {
		case ctx.Err() != nil:
			return
		case listed[f.path]:
			s.check(ctx, f, now)
		case !f.isStream && !slices.ContainsFunc(kept, func(r *root) bool { return r.has(f.path) }):
			s.forget(f, now)
		}
	}
	s.update()
}

// problems reports the error of a path that cannot be read, or a folder without files to read.
func (r *root) problems(paths []string, err error) []route.Problem {
	switch {
	case err != nil:
		return []route.Problem{{Object: r.path, Reason: fmt.Sprintf("%v; %s", err, isKept)}}
	case r.folder && len(paths) == 0:
		return []route.Problem{{
			Object: r.path, Reason: "has no manifests: expected files *.yaml, *.yml or *.json; folders in it are not read",
		}}
	}
	return nil
}

// forget deletes a file that is missing.
func (s *Source) forget(f *file, now time.Time) {
	if s.mustSettle(f, nil, now) {
		return
	}
	delete(s.files, f.path)
	s.report.Set(f.path, nil)
	s.changed, s.latest = true, now
}

// check reads a file if it changed.
func (s *Source) check(ctx context.Context, f *file, now time.Time) {
	info, err := os.Stat(f.path)
	if err == nil && f.err == nil && same(info, f.info) {
		f.since = time.Time{}
		return
	}
	if s.mustSettle(f, info, now) {
		return
	}
	f.since = time.Time{}
	opened, err := textfile.Open(f.path)
	if err != nil {
		s.use(ctx, f, nil, err)
		return
	}
	defer opened.Close()
	data, err := opened.Read(s.reader.limits.FileBytes)
	f.info = opened.Info
	s.use(ctx, f, data, err)
}

// same reports whether two states of a file are the same. The state of a missing file is nil.
func same(a, b fs.FileInfo) bool {
	if a == nil || b == nil {
		return a == nil && b == nil
	}
	return os.SameFile(a, b) && a.Mode().Type() == b.Mode().Type() && a.Size() == b.Size() &&
		a.ModTime().Equal(b.ModTime())
}

// mustSettle reports whether a file has been in a state for less than settle, and then schedules the next scan.
func (s *Source) mustSettle(f *file, info fs.FileInfo, now time.Time) bool {
	isReplaced := info != nil && f.info != nil && !os.SameFile(info, f.info)
	if !s.loaded || isReplaced {
		return false
	}
	if f.since.IsZero() {
		f.changed = now
	}
	if f.since.IsZero() || !same(info, f.pending) {
		f.pending, f.since = info, now
	}
	due := f.since.Add(settle)
	if latest := f.changed.Add(maxSettle); latest.Before(due) {
		due = latest
	}
	if !now.Before(due) {
		return false
	}
	s.scanAt(due)
	return true
}

// scanAt schedules a scan, unless one is due earlier.
func (s *Source) scanAt(due time.Time) {
	if s.next.IsZero() || due.Before(s.next) {
		s.next = due
	}
}

// useStream uses the text of a stream.
func (s *Source) useStream(ctx context.Context, in stream) {
	f := &file{path: in.path, isStream: true}
	s.files[f.path] = f
	s.use(ctx, f, in.data, in.err)
	s.update()
}

// use uses the text of a file, or keeps its last content if the file cannot be read whole.
func (s *Source) use(ctx context.Context, f *file, data []byte, err error) {
	s.changed = true
	f.err = err
	if err != nil {
		f.isKept = f.wasRead
		f.content = content{isBroken: true, problems: []route.Problem{{Object: f.path, Reason: err.Error()}}}
		return
	}
	next := s.reader.parse(ctx, f.path, data)
	others := -len(f.objects)
	for _, other := range s.files {
		others += len(other.objects)
	}
	refuse := func(reason string) {
		next.isBroken = true
		next.problems = append(next.problems, route.Problem{Object: f.path, Reason: reason})
	}
	if most := s.reader.limits.Objects; others+len(next.objects) > most {
		refuse(fmt.Sprintf("the file has %d objects and the other files have %d; the limit for all is %d",
			len(next.objects), others, most))
	}
	if len(strings.TrimSpace(string(data))) == 0 && len(f.objects) > 0 { // most programs empty a file before they write it
		refuse("the file is empty, so its objects stay until it is removed or written")
	}
	if ctx.Err() != nil {
		return
	}
	s.latest = time.Now()
	f.wasRead, f.isKept = true, next.isBroken
	if !next.isBroken {
		f.objects = next.objects
	}
	next.objects = nil
	f.content = next
}

// problems returns the problems of a file to report. The last one says whether the file counts.
func (f *file) problems() []route.Problem {
	out := slices.Clone(f.content.report(f.path))
	switch {
	case f.isKept && len(f.objects) > 0:
		out[len(out)-1].Reason += "; the file cannot be read whole: " + isKept
	case f.content.isBroken:
		out[len(out)-1].Reason += "; the file cannot be read whole and is not used"
	}
	return out
}

// update updates the Store, reports the problems of files, and publishes the state.
func (s *Source) update() {
	if !s.changed {
		return
	}
	s.changed = false
	files := s.sorted()
	objects, duplicates := merge(files)
	next := stateOf(objects, s.reader.nodeName)
	apply(s.store, s.has, next)
	s.has = next
	for _, f := range files {
		s.report.Set(f.path, append(f.problems(), duplicates[f]...))
	}
	s.publish()
}

// merge joins the values of objects in sorted files. Of an object in two files the first counts; the second has a
// problem.
func merge(files []*file) (objects map[key]any, duplicates map[*file][]route.Problem) {
	objects, duplicates = map[key]any{}, map[*file][]route.Problem{}
	from := map[key]*file{}
	for _, f := range files {
		for _, o := range f.objects {
			first, twice := from[o.key]
			if !twice {
				from[o.key], objects[o.key] = f, o.value
				continue
			}
			duplicates[f] = append(duplicates[f], route.Problem{
				Object: f.path + ": " + o.key.String(), Reason: "also in " + first.path + ", which takes precedence",
			})
		}
	}
	return objects, duplicates
}

// state has the objects that the Store has, or is to have.
type state struct {
	services map[cluster.Name]*cluster.Service
	slices   map[cluster.Name]*cluster.Slice
	node     *cluster.Node
	peers    map[string]*cluster.Node // all Nodes, with the own one
	cidrs    []netip.Prefix
}

// stateOf returns the state for the objects of files. A Service without EndpointSlices gets slices of its Endpoints
// or, if it has none, of the Pods that it selects.
func stateOf(objects map[key]any, own string) state {
	out := state{
		services: map[cluster.Name]*cluster.Service{}, slices: map[cluster.Name]*cluster.Slice{},
		peers: map[string]*cluster.Node{},
	}
	hasSlices := map[cluster.Name]bool{}
	pods := map[label][]*convert.Pod{}
	for k, o := range objects {
		switch v := o.(type) {
		case service:
			out.services[k.name] = v.Service
		case *cluster.Slice:
			out.slices[v.Name] = v
			hasSlices[v.Service] = true
		case *cluster.Node:
			out.peers[v.Name] = v
		case []netip.Prefix:
			out.cidrs = append(out.cidrs, v...)
		case *convert.Pod:
			for name, value := range v.Labels {
				l := label{v.Name.Namespace, name, value}
				pods[l] = append(pods[l], v)
			}
		}
	}
	for k, o := range objects {
		var made []*cluster.Slice
		switch v := o.(type) {
		case []*cluster.Slice:
			made = v
		case service:
			if v.selection != nil && objects[key{kindEndpoints, k.name}] == nil {
				made = v.selection.Slices(pods[anchor(v.selection)])
			}
		}
		for _, sl := range made {
			if !hasSlices[k.name] {
				out.slices[sl.Name] = sl
			}
		}
	}
	slices.SortFunc(out.cidrs, netip.Prefix.Compare)
	out.node = out.peers[own]
	return out
}

type label struct{ namespace, key, value string }

// anchor is a label that all Pods of a selection have.
func anchor(s *convert.Selection) label {
	k := slices.Min(slices.Collect(maps.Keys(s.Labels)))
	return label{s.Service.Namespace, k, s.Labels[k]}
}

// apply brings the Store to the next state, in an order in which no Service is ever without its endpoints.
func apply(store *cluster.Store, old, now state) {
	for name := range old.services {
		if now.services[name] == nil {
			store.DeleteService(name)
		}
	}
	setChanged(old.slices, now.slices, store.SetSlice)
	for name := range old.slices {
		if now.slices[name] == nil {
			store.DeleteSlice(name)
		}
	}
	for _, n := range now.peers {
		store.Peers().Set(n)
	}
	for name := range old.peers {
		if now.peers[name] == nil {
			store.Peers().Delete(name)
		}
	}
	if !reflect.DeepEqual(old.node, now.node) {
		store.SetNode(now.node)
	}
	if !slices.Equal(old.cidrs, now.cidrs) {
		store.SetServiceCIDRs(now.cidrs)
	}
	setChanged(old.services, now.services, store.SetService)
}

// setChanged calls set with each object that is new or different, sorted by name.
func setChanged[V any](old, now map[cluster.Name]*V, set func(*V)) {
	var names []cluster.Name
	for name, v := range now {
		if !reflect.DeepEqual(old[name], v) {
			names = append(names, name)
		}
	}
	slices.SortFunc(names, cluster.Name.Compare)
	for _, name := range names {
		set(now[name])
	}
}

// Package manifest feeds a cluster.Store from files: no cluster needed.
//
// It reads Services, EndpointSlices, Endpoints, Nodes, ServiceCIDRs and Pods,
// alone or in lists, in YAML or JSON, and ignores all other kinds. While it runs it
// follows every change of the files. The last content of a file stays in force while
// the file is invalid or half written.
package manifest

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sluice-proxy/sluice/internal/cluster"
	"github.com/sluice-proxy/sluice/internal/route"
	"github.com/sluice-proxy/sluice/internal/source"
	"github.com/sluice-proxy/sluice/internal/source/convert"
	"github.com/sluice-proxy/sluice/internal/text"
	"github.com/sluice-proxy/sluice/internal/textfile"
)

// stdin is the path that means the standard input.
const stdin = "-"

// Options for New.
type Options struct {
	// Paths are files, folders, of which the files *.yaml, *.yml and *.json
	// are read but no folders in them, and "-" for Stdin. Of an object in two
	// files the one in the first path counts, in a folder the first by name.
	Paths []string
	Stdin io.Reader

	NodeName         string // the Node of this name is the own one
	AllowExternalIPs bool   // spec.externalIPs of Services count

	LoopbackEndpoints bool // endpoints may have loopback addresses

	Report func([]route.Problem) // receives each problem once; may be nil

	Limits Limits // zero: DaemonLimits
}

// Source reads files into a Store. One goroutine uses it; State may be called from
// any.
type Source struct {
	roots   []*root
	stdin   io.Reader
	reader  reader
	report  *source.Reporter
	index   *index
	done    func()
	objects int // of all files

	files   map[string]*file
	rereads map[string]time.Time // when to read files again
	jobs    *workers             // read files; nil: files are read at once

	loaded   bool      // everything that can be read was read once
	unlisted int       // roots whose files are not known
	latest   time.Time // when the content of a file last changed
	state    atomic.Pointer[source.State]
}

// root is a path as the caller gave it.
type root struct {
	path     string
	folder   bool // it is a folder, or was when last listed
	isStream bool // it is read once: the standard input, or a pipe from the parent
}

// New makes a Source and announces its feed to the Store. It reads no file before
// Load or Run.
func New(store *cluster.Store, o Options) *Source {
	if o.Limits == (Limits{}) {
		o.Limits = DaemonLimits()
	}
	reporter := source.NewReporter(o.Report)
	s := &Source{
		stdin: o.Stdin,
		reader: reader{
			convert:  convert.Converter{AllowExternalIPs: o.AllowExternalIPs, LoopbackEndpoints: o.LoopbackEndpoints, Strings: convert.NewInterner()},
			nodeName: o.NodeName,
			limits:   o.Limits,
			heavy:    &sync.Mutex{},
		},
		report:  reporter,
		index:   newIndex(store, reporter),
		done:    store.Feed(),
		files:   map[string]*file{},
		rereads: map[string]time.Time{},
	}
	for _, p := range o.Paths {
		if p != stdin {
			p = filepath.Clean(p)
		}
		s.roots = append(s.roots, &root{path: p, isStream: p == stdin || isInherited(p)})
	}
	s.publish()
	return s
}

// isInherited reports whether a path leads to a pipe that this process has from
// its parent, as with "-f <(program)" in a shell. Other pipes are not read.
func isInherited(path string) bool {
	if path != "/dev/stdin" && !slices.Contains([]string{"/dev/fd", "/proc/self/fd"}, filepath.Dir(path)) {
		return false
	}
	info, err := os.Stat(path)
	return err == nil && info.Mode()&fs.ModeNamedPipe != 0
}

// Check returns an error if a path does not exist. It reads no file.
func (s *Source) Check() error {
	var errs []error
	for _, r := range s.roots {
		if r.isStream {
			continue
		}
		if _, err := os.Stat(r.path); err != nil {
			errs = append(errs, fmt.Errorf("read manifests: %w", err))
		}
	}
	return errors.Join(errs...)
}

// Load reads everything once. It returns an error if a path cannot be read. It
// reports the problems inside files, and uses all other objects.
func (s *Source) Load() error {
	var errs []error
	for i, r := range s.roots {
		paths, err := r.list()
		errs = append(errs, err)
		for _, p := range paths {
			if s.files[p] == nil {
				errs = append(errs, s.load(rank{i, p}))
			}
		}
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("read manifests: %w", err)
	}
	s.finishLoad()
	return nil
}

// load reads a file for the first time. A file of a folder may have been deleted
// since the folder was listed.
func (s *Source) load(from rank) error {
	f := s.add(from)
	r := s.job(f).do()
	_, notRegular := errors.AsType[*textfile.NotRegularError](r.err)
	mayBe := s.roots[from.root].folder && (notRegular || errors.Is(r.err, fs.ErrNotExist))
	if r.err != nil && !mayBe {
		return r.err
	}
	s.finish(r, time.Now())
	return nil
}

// tryFinishLoad finishes the load once everything that can be read was read.
func (s *Source) tryFinishLoad() {
	if s.loaded {
		return
	}
	read, failed := 0, s.unlisted
	for _, f := range s.files {
		switch {
		case f.busy:
			return
		case f.wasRead:
			read++
		default:
			failed++
		}
	}
	if read > 0 || failed == 0 {
		s.finishLoad()
	}
}

// finishLoad announces that every file was read, or failed, once.
func (s *Source) finishLoad() {
	s.loaded = true
	s.index.reportDuplicates(s.gone)
	s.publish()
	s.done()
}

// list returns the files of a root.
func (r *root) list() ([]string, error) {
	if r.path == stdin {
		return []string{"/dev/stdin"}, nil
	}
	if r.isStream {
		return []string{r.path}, nil
	}
	info, err := os.Stat(r.path)
	if err != nil {
		return nil, err
	}
	r.folder = info.IsDir()
	if !r.folder {
		return []string{r.path}, nil
	}
	entries, err := os.ReadDir(r.path)
	if err != nil {
		return nil, err
	}
	var paths []string
	for _, e := range entries {
		if isManifest(e.Name()) {
			paths = append(paths, filepath.Join(r.path, e.Name()))
		}
	}
	return paths, nil
}

// isManifest reports whether a file of a folder is to be read, by its name.
// Editors and volumes put hidden files there.
func isManifest(name string) bool {
	return !strings.HasPrefix(name, ".") && slices.Contains([]string{".yaml", ".yml", ".json"}, filepath.Ext(name))
}

// State returns the state of the Source. It is connected once every file was read.
// It is safe for concurrent use.
func (s *Source) State() source.State {
	st := *s.state.Load()
	st.Problems = s.report.Count()
	return st
}

// publish updates the result of State.
func (s *Source) publish() {
	st := source.State{LastEvent: s.latest, Connected: s.loaded}
	if before := s.state.Load(); before != nil {
		st.Since = before.Since
	}
	if s.loaded && st.Since.IsZero() {
		st.Since = time.Now()
	}
	broken := 0
	var bad []*file // with problems
	for _, f := range s.files {
		if f.wasRead {
			st.Files++
		}
		if f.content.isBroken() || f.wasRead && f.attempts > 0 {
			broken++
		}
		if f.problems > 0 {
			bad = append(bad, f)
		}
	}
	st.Trouble = trouble(bad)
	if broken > 0 {
		st.Unrepeatable = text.Count(broken, "file") + " cannot be read as a whole at present"
	}
	paths := make([]string, len(s.roots))
	for i, r := range s.roots {
		paths[i] = r.path
		if r.isStream {
			st.Unrepeatable = r.path + " can be read once only"
		}
	}
	st.From = strings.Join(paths, ", ")
	s.state.Store(&st)
}

// trouble returns a summary of the problems of files; empty if there are none.
func trouble(bad []*file) string {
	if len(bad) == 0 {
		return ""
	}
	total := 0
	for _, f := range bad {
		total += f.problems
	}
	worst := slices.MinFunc(bad, func(a, b *file) int {
		return cmp.Or(cmp.Compare(b.problems, a.problems), a.from.compare(b.from))
	})
	if len(bad) == 1 {
		return fmt.Sprintf("%s in %s", text.Count(total, "problem"), worst.from.path)
	}
	return fmt.Sprintf("%s in %s, %d in %s", text.Count(total, "problem"), text.Count(len(bad), "file"), worst.problems, worst.from.path)
}

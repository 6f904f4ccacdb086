// Package manifest feeds a cluster.Store from files: no cluster needed.
//
// It reads Services, EndpointSlices, Endpoints, Nodes, ServiceCIDRs and Pods,
// alone or in lists, in YAML or JSON, and ignores all other kinds. While it runs it
// follows every change of the files. The last content of a file stays in force while
// the file is invalid or half written.
package manifest

import (
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
	"github.com/sluice-proxy/sluice/internal/source/convert"
	"github.com/sluice-proxy/sluice/internal/source/report"
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

	Report func([]route.Problem) // receives each problem once; may be nil

	Limits Limits // zero: DaemonLimits
}

// Source reads files into a Store. One goroutine uses it; any may ask for its
// State.
type Source struct {
	roots  []*root
	stdin  io.Reader
	reader reader
	report *report.Reporter
	budget *budget
	index  *index
	done   func()

	files   map[string]*file
	rereads map[string]time.Time // when to read files again
	jobs    *workers             // that read files; nil: they are read at once

	loaded   bool           // everything that can be read was read once
	unlisted int            // roots of which the files are not known
	waiting  int            // streams that were not read to their end
	streams  int            // streams that were read
	objects  int            // of all files
	counts   map[string]int // the problems of each file that has any
	latest   time.Time      // when a file was taken over last
	progress atomic.Pointer[progress]
}

// root is a path as the caller gave it.
type root struct {
	path     string
	folder   bool // it is a folder, or was when last seen
	isStream bool // it is read once: the standard input, or a pipe from the parent
}

// New makes a Source and announces its feed to the Store. It reads no file before
// Load or Run.
func New(store *cluster.Store, o Options) *Source {
	if o.Limits == (Limits{}) {
		o.Limits = DaemonLimits()
	}
	tell := &budget{report: o.Report}
	r := report.New(tell.Report)
	s := &Source{
		budget: tell,
		stdin:  o.Stdin,
		reader: reader{
			convert:  convert.Converter{AllowExternalIPs: o.AllowExternalIPs, Strings: convert.NewInterner()},
			nodeName: o.NodeName,
			limits:   o.Limits,
			heavy:    &sync.Mutex{},
		},
		report:  r,
		index:   newIndex(store, r),
		done:    store.Feed(),
		files:   map[string]*file{},
		rereads: map[string]time.Time{},
		counts:  map[string]int{},
	}
	for _, p := range o.Paths {
		if p != stdin {
			p = filepath.Clean(p)
		}
		s.roots = append(s.roots, &root{path: p, isStream: p == stdin || isInherited(p)})
	}
	return s
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
// reports the problems inside files, and takes over all other objects.
func (s *Source) Load() error {
	var errs []error
	for i, r := range s.roots {
		if r.isStream {
			errs = append(errs, s.loadStream(i))
			continue
		}
		paths, err := r.list()
		if err != nil {
			errs = append(errs, fmt.Errorf("read manifests: %w", err))
		}
		for _, p := range paths {
			if s.files[p] == nil {
				errs = append(errs, s.load(rank{i, p}))
			}
		}
	}
	if err := errors.Join(errs...); err != nil {
		return err
	}
	s.finishLoad()
	return nil
}

// finishLoad announces that every file was read, or failed, once.
func (s *Source) finishLoad() {
	s.loaded = true
	s.index.reportDuplicates(s.gone)
	s.budget.Flush()
	s.publish()
	s.done()
}

// load reads a file for the first time and takes it over at once. A file of a folder
// may have been deleted since the folder was listed.
func (s *Source) load(from rank) error {
	f := &file{from: from}
	s.files[from.path] = f
	r := job{file: f, reader: s.reader}.do()
	_, notRegular := errors.AsType[*textfile.NotRegularError](r.err)
	mayBe := s.roots[from.root].folder && (notRegular || errors.Is(r.err, fs.ErrNotExist))
	if r.err != nil && !mayBe {
		return fmt.Errorf("read manifests: %w", r.err)
	}
	s.finish(r, time.Now())
	return nil
}

// list returns the files of a root.
func (r *root) list() ([]string, error) {
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

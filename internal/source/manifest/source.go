// Package manifest feeds a cluster.Store from files: no cluster needed.
//
// It reads Services, EndpointSlices, Endpoints, Nodes, ServiceCIDRs and Pods,
// alone or in lists, in YAML or JSON, and passes over everything else. While
// it runs it follows every change of the files; a file that is broken or only
// half written keeps what it last said.
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
	"sync/atomic"
	"time"

	"github.com/sluice-proxy/sluice/internal/cluster"
	"github.com/sluice-proxy/sluice/internal/route"
	"github.com/sluice-proxy/sluice/internal/source/convert"
	"github.com/sluice-proxy/sluice/internal/source/report"
)

// stdin is the path that means the standard input.
const stdin = "-"

// Options are what a Source needs besides a Store.
type Options struct {
	// Paths are files, folders, of which the files *.yaml, *.yml and *.json
	// are read but no folders in them, and "-" for Stdin. Of an object in two
	// files the one in the first path counts, in a folder the first by name.
	Paths []string
	Stdin io.Reader

	NodeName         string // the Node of this name is the own one
	AllowExternalIPs bool   // spec.externalIPs of Services count

	Report func([]route.Problem) // told once of each problem; may be nil
}

// Source reads files into a Store. One goroutine uses it; any may ask for its
// State.
type Source struct {
	roots  []*root
	stdin  io.Reader
	reader reader
	report *report.Reporter
	index  *index
	done   func()

	files  map[string]*file
	doubts map[string]time.Time // files that are to be looked at again, and when

	streams  int       // standard inputs that were read
	latest   time.Time // something was taken over
	progress atomic.Pointer[progress]
}

// root is a path as the caller gave it.
type root struct {
	path   string
	folder bool // it is, or was when last seen
}

// New assembles a Source and announces its feed to the Store. Nothing is read
// before Load or Run.
func New(store *cluster.Store, o Options) *Source {
	r := report.New(o.Report)
	s := &Source{
		stdin: o.Stdin,
		reader: reader{
			convert:  convert.Converter{AllowExternalIPs: o.AllowExternalIPs, Strings: convert.NewInterner()},
			nodeName: o.NodeName,
		},
		report: r,
		index:  newIndex(store, r),
		done:   store.Feed(),
		files:  map[string]*file{},
		doubts: map[string]time.Time{},
	}
	for _, p := range o.Paths {
		if p != stdin {
			p = filepath.Clean(p)
		}
		s.roots = append(s.roots, &root{path: p})
	}
	return s
}

// Check makes sure that there is something at every path, and reads nothing.
func (s *Source) Check() error {
	var errs []error
	for _, r := range s.roots {
		if r.path == stdin {
			continue
		}
		if _, err := os.Stat(r.path); err != nil {
			errs = append(errs, fmt.Errorf("read manifests: %w", err))
		}
	}
	return errors.Join(errs...)
}

// Load reads everything once. An error means that a path cannot be read; what
// is wrong inside a file is reported, and everything else in it counts.
func (s *Source) Load() error {
	var errs []error
	for i, r := range s.roots {
		if r.path == stdin {
			errs = append(errs, s.readStdin(i))
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
	s.index.contest(s.gone)
	s.publish()
	s.done()
	return nil
}

func (s *Source) readStdin(i int) error {
	if s.stdin == nil {
		return errors.New("read manifests: there is no standard input")
	}
	data, err := io.ReadAll(s.stdin)
	if err != nil {
		return fmt.Errorf("read manifests from standard input: %w", err)
	}
	s.streams++
	s.accept(&file{from: rank{i, "stdin"}}, reading{data: data}, s.reader.parse("stdin", data))
	return nil
}

// load reads a file for the first time and believes it at once.
func (s *Source) load(from rank) error {
	r, err := readFile(from.path)
	if err != nil {
		return fmt.Errorf("read manifests: %w", err)
	}
	f := &file{from: from}
	s.files[from.path] = f
	s.accept(f, r, s.reader.parse(from.path, r.data))
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
		path := filepath.Join(r.path, e.Name())
		if isManifest(e.Name()) && isFile(path, e) {
			paths = append(paths, path)
		}
	}
	return paths, nil
}

// isManifest reports whether a file of a folder is to be read, by its name.
// Hidden ones are what editors and volumes put there.
func isManifest(name string) bool {
	return !strings.HasPrefix(name, ".") && slices.Contains([]string{".yaml", ".yml", ".json"}, filepath.Ext(name))
}

// isFile reports whether a folder's entry is, or points to, a regular file.
// One that points nowhere is let through: its reader tells.
func isFile(path string, e fs.DirEntry) bool {
	if e.Type()&fs.ModeSymlink == 0 {
		return e.Type().IsRegular()
	}
	info, err := os.Stat(path)
	return err == nil && info.Mode().IsRegular()
}

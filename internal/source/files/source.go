// Package files feeds a cluster.Store from files: no cluster needed.
//
// It reads Services, EndpointSlices, Endpoints, Nodes, ServiceCIDRs and Pods, alone or in lists, in YAML or JSON, and
// ignores all other kinds. While it runs it follows every change of the files. A file that cannot be read whole is
// reported, and its last content stays in force.
package files

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/sluice-proxy/sluice/internal/cluster"
	"github.com/sluice-proxy/sluice/internal/route"
	"github.com/sluice-proxy/sluice/internal/source"
	"github.com/sluice-proxy/sluice/internal/source/convert"
	"github.com/sluice-proxy/sluice/internal/text"
	"github.com/sluice-proxy/sluice/internal/textfile"
)

// isKept is the part of messages that says that the last content stays in force.
const isKept = "its last content stays in force"

// Options for New.
type Options struct {
	// Paths are files, folders, and "-" for Stdin. In a folder, the files *.yaml, *.yml and *.json are read, but no
	// folders. If two files have an object, the file whose path sorts first wins.
	Paths []string
	Stdin io.Reader

	NodeName string            // the Node of this name is the own one
	Convert  convert.Converter // without Strings

	Report func([]route.Problem) // receives each problem once; may be nil

	Limits Limits // zero: DaemonLimits
}

// Source reads files into a Store. One goroutine uses it; State may be called from any.
type Source struct {
	roots  []*root
	stdin  io.Reader
	reader reader
	report *source.Reporter
	store  *cluster.Store
	done   func()

	files    map[string]*file
	has      state                        // of the Store, from these files
	next     time.Time                    // when to scan again; zero: not
	changed  bool                         // since the last update
	loaded   bool                         // everything that can be read was read once
	unlisted int                          // roots whose files are not known
	latest   time.Time                    // when the content of a file last changed
	public   atomic.Pointer[source.State] // the result of State
}

// root is a path as the caller gave it.
type root struct {
	path     string // "/dev/stdin" for "-"
	isStdin  bool   // it is read from Options.Stdin
	folder   bool   // it is a folder, or was when last listed
	isFile   bool   // it was a file when it was listed first
	isStream bool   // it is read once: the standard input, or a pipe from the parent
}

// New makes a Source and announces its feed to the Store. It reads no file before Load or Run.
func New(store *cluster.Store, o Options) *Source {
	if o.Limits == (Limits{}) {
		o.Limits = DaemonLimits()
	}
	s := &Source{
		stdin: o.Stdin,
		reader: reader{
			convert:  o.Convert,
			nodeName: o.NodeName,
			limits:   o.Limits,
		},
		report: source.NewReporter(o.Report),
		store:  store,
		done:   store.Feed(),
		files:  map[string]*file{},
	}
	s.reader.convert.Strings = convert.NewInterner()
	s.reader.convert.AssignClusterIPs = true
	for _, p := range o.Paths {
		r := &root{path: "/dev/stdin", isStdin: true, isStream: true}
		if p != "-" {
			p = filepath.Clean(p)
			r = &root{path: p, isStream: isInherited(p)}
		}
		s.roots = append(s.roots, r)
	}
	s.publish()
	return s
}

// isInherited reports whether a path is a pipe from the parent process, as with "-f <(program)" in a shell.
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

// Load reads everything once. A path that cannot be read is an error; problems inside files are reported.
func (s *Source) Load() error {
	var errs []error
	for _, r := range s.roots {
		if r.isStream {
			s.useStream(context.Background(), s.readStream(r))
			continue
		}
		_, err := r.list()
		errs = append(errs, err)
	}
	if errors.Join(errs...) == nil {
		s.scan(context.Background(), time.Now())
	}
	for _, f := range s.files {
		isNamed := f.isStream || slices.ContainsFunc(s.roots, func(r *root) bool { return r.path == f.path })
		if isNamed || !errors.Is(f.err, textfile.ErrNotRegular) && !errors.Is(f.err, fs.ErrNotExist) {
			errs = append(errs, f.err)
		}
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("read manifests: %w", err)
	}
	s.finishLoad()
	return nil
}

// stream is the text of the standard input, or of a pipe.
type stream struct {
	path string
	data []byte
	err  error
}

// readStream reads a stream to its end.
func (s *Source) readStream(r *root) stream {
	out := stream{path: r.path}
	in := s.stdin
	if !r.isStdin {
		f, err := os.OpenFile(r.path, os.O_RDONLY|syscall.O_NONBLOCK, 0)
		if out.err = err; err != nil {
			return out
		}
		defer f.Close()
		in = f
	}
	if in == nil {
		out.err = errors.New("there is no standard input")
		return out
	}
	out.data, out.err = textfile.ReadLimited(out.path, in, textfile.Size{Limit: s.reader.limits.FileBytes})
	return out
}

// tryFinishLoad finishes the load once everything that can be read was read.
func (s *Source) tryFinishLoad() {
	if s.loaded {
		return
	}
	failed := 0
	for _, f := range s.files {
		if f.err != nil {
			failed++
		}
	}
	isAnyRead := failed < len(s.files)
	hasStreams := !slices.ContainsFunc(s.roots, func(r *root) bool { return r.isStream && s.files[r.path] == nil })
	if hasStreams && (isAnyRead || failed+s.unlisted == 0) {
		s.finishLoad()
	}
}

// finishLoad announces that every file was read, or failed, once.
func (s *Source) finishLoad() {
	s.loaded = true
	s.publish()
	s.store.Peers().Listed()
	s.done()
}

// list returns the files of a root that is no stream.
func (r *root) list() ([]string, error) {
	if _, err := os.Lstat(r.path); r.isFile && err == nil {
		return []string{r.path}, nil // it may be something else by now, which cannot be read
	}
	info, err := os.Stat(r.path)
	if err != nil {
		return nil, err
	}
	r.folder, r.isFile = info.IsDir(), !info.IsDir()
	if r.isFile {
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

// has reports whether a file is one of the root.
func (r *root) has(path string) bool { return path == r.path || filepath.Dir(path) == r.path }

// isManifest reports whether a file of a folder is to be read, by its name. Editors and volumes put hidden files there.
func isManifest(name string) bool {
	return !strings.HasPrefix(name, ".") && slices.Contains([]string{".yaml", ".yml", ".json"}, filepath.Ext(name))
}

// State returns the state of the Source. It is connected once every file was read. It is safe for concurrent use.
func (s *Source) State() source.State {
	st := *s.public.Load()
	st.Problems = s.report.Count()
	return st
}

// publish updates the result of State.
func (s *Source) publish() {
	st := source.State{LastEvent: s.latest, Connected: s.loaded}
	if before := s.public.Load(); before != nil {
		st.Since = before.Since
	}
	if s.loaded && st.Since.IsZero() {
		st.Since = time.Now()
	}
	kept, total := 0, 0
	var bad []string // files with problems
	for _, f := range s.sorted() {
		if f.wasRead {
			st.Files++
		}
		if f.isKept {
			kept++
		}
		if n := len(f.content.problems) + f.content.more; n > 0 {
			total += n
			bad = append(bad, f.path)
		}
	}
	switch len(bad) {
	case 0:
	case 1:
		st.Trouble = fmt.Sprintf("%s in %s", text.Count(total, "problem"), bad[0])
	default:
		st.Trouble = fmt.Sprintf("%s in %s, the first is %s",
			text.Count(total, "problem"), text.Count(len(bad), "file"), bad[0])
	}
	if kept > 0 {
		st.Unrepeatable = text.Count(kept, "file") + " cannot be read as a whole at present"
	}
	paths := make([]string, len(s.roots))
	for i, r := range s.roots {
		paths[i] = r.path
		if r.isStream {
			st.Unrepeatable = r.path + " can be read once only"
		}
	}
	st.From = strings.Join(paths, ", ")
	s.public.Store(&st)
}

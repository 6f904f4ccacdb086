package files

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime/debug"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/sluice-proxy/sluice/internal/cluster"
	"github.com/sluice-proxy/sluice/internal/event"
	"github.com/sluice-proxy/sluice/internal/route"
	"github.com/sluice-proxy/sluice/internal/source"
	"github.com/sluice-proxy/sluice/test/seeds"
)

// bomb returns a document in which each level repeats the previous one ten times.
func bomb(levels int) string {
	var b strings.Builder
	b.WriteString("apiVersion: v1\nkind: ConfigMap\nmetadata: {name: bomb}\na0: &a0 [x,x,x,x,x,x,x,x,x,x]\n")
	for i := 1; i < levels; i++ {
		alias := fmt.Sprintf("*a%d", i-1)
		fmt.Fprintf(&b, "a%d: &a%d [%s]\n", i, i, strings.TrimSuffix(strings.Repeat(alias+",", 10), ","))
	}
	return b.String()
}

// chain returns a document in which each alias is one level deeper than the previous one.
func chain(n int) string {
	var b strings.Builder
	b.WriteString("a0: &a0 x\n")
	for i := 1; i < n; i++ {
		fmt.Fprintf(&b, "a%d: &a%d [*a%d]\n", i, i, i-1)
	}
	return b.String()
}

// nested returns n nested Lists.
func nested(n int) string {
	return strings.Repeat(`{"apiVersion":"v1","kind":"List","items":[`, n) + jsonNode("x") + strings.Repeat("]}", n)
}

// hostile returns texts that are expensive to read without limits, each with a part of the expected problem.
func hostile() map[string][2]string {
	const listOf = `{"apiVersion":"v1","kind":"List","items":[`
	return map[string][2]string{
		"alias bomb": {bomb(9), "aliases replaced"},
		"alias bomb of long text": {"a: &a " + strings.Repeat("x", 1<<20) + "\nb: [" +
			strings.TrimSuffix(strings.Repeat("*a,", 900), ",") + "]\n", "aliases replaced"},
		"alias of itself": {"a: &a [*a]\n", "aliases replaced"},
		"many aliases": {
			"a: &a [" + strings.Repeat("xx,", 4200) + "]\nb: [" + strings.Repeat("*a,", 194) + "]\n",
			"aliases replaced",
		},
		"many values and aliases": {
			"a: &a [" + strings.Repeat("x,", 400_000) + "]\nb: [" + strings.Repeat("*a,", 2) + "]\n",
			"aliases replaced",
		},
		"chain of aliases":   {chain(50_000), "aliases replaced"},
		"5,000 nested Lists": {nested(5000), "exceeded max depth"},
		"20 nested Lists":    {nested(20), "lists are nested more than 5 levels deep"},
		"deep flow":          {strings.Repeat("[", 9000) + strings.Repeat("]", 9000), "expected an object"},
		"deep block":         {strings.Repeat("- ", 9000) + "x", "expected an object"},
		"deep JSON": {
			`{"a":` + strings.Repeat("[", 9000) + strings.Repeat("]", 9000) + "}",
			"not a Kubernetes object",
		},
		"large document": {"a: " + strings.Repeat("x", 9<<20), "the document has 9 MiB; the limit is 8 MiB"},
		"many values":    {"[" + strings.Repeat("a,", 1<<20-10) + "]", "values; the limit is 524288"},
		"large object": {`{"apiVersion":"v1","kind":"Service","metadata":{"name":"x","annotations":{"x":"` +
			strings.Repeat("x", 9<<20) + `"}}}`, "Service default/x: the object has 9 MiB; the limit is 8 MiB"},
		"many items": {
			listOf + strings.Repeat(jsonNode("x")+",", 60_000) + jsonNode("x") + "]}",
			"more than 60000 documents and items",
		},
		"60,001 documents": {
			strings.Repeat("---\napiVersion: v1\nkind: ConfigMap\n", 60_001),
			"more than 60000 documents and items",
		},
		"many empty documents":     {strings.Repeat("---\n#\n", 5_000_000) + "x", "expected an object"},
		"200,000 broken documents": {strings.Repeat("---\n- a\n", 200_000), "line 20: "},
		"20,000 repeated keys":     {strings.Repeat("k: v\n", 20_000), `key "k" already set in map`},
		"4,000 nested Lists":       {nested(4000), "lists are nested more than 5 levels deep"},
		"dense document":           {"[" + strings.Repeat("abc,", 1<<19-10) + "]", "expected an object"},
		"dense object": {`{"apiVersion":"v1","kind":"Service","metadata":{"name":"x"},"spec":{"ports":[{}` +
			strings.Repeat(",{}", 690_000) + "]}}", "Service default/x: the object has 1380015 values"},
		"dense slice": {`{"apiVersion":"discovery.k8s.io/v1","kind":"EndpointSlice","metadata":{"name":"x"},` +
			`"endpoints":[{}` + strings.Repeat(",{}", 260_000) + "]}", "EndpointSlice default/x: "},
		"object twice, often": {strings.Repeat(jsonNode("x")+"\n", 5000), "and 4989 more problems"},
	}
}

// Each hostile text is refused with an error that contains the limit, in a bounded number
// of lines, and without much memory.
func TestHostileFiles(t *testing.T) {
	seeds.Long(t)
	old := debug.SetGCPercent(50) // as in the daemon
	defer debug.SetGCPercent(old)
	for name, tc := range hostile() {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "x.yaml")
			write(t, path, tc[0])
			store := cluster.NewStore()
			var reported []string
			s := New(store, Options{Paths: []string{path}, Report: func(ps []route.Problem) {
				for _, p := range ps {
					reported = append(reported, p.String())
				}
			}})
			begin := time.Now()
			most := growth(func() { must(t, s.Load()) })
			t.Logf("%v, %d MB of heap, %s", time.Since(begin), most>>20, s.State().Trouble)
			if most > 180<<20 {
				t.Errorf("%d MB of heap", most>>20)
			}
			if len(reported) > mostProblems+2 {
				t.Errorf("%d lines", len(reported))
			}
			if all := strings.Join(reported, "\n"); !strings.Contains(all, tc[1]) || !strings.Contains(all, path) {
				t.Errorf("reported %.1000s\nwant %q", all, tc[1])
			}
			if s.State().Trouble == "" {
				t.Error("the state has no Trouble")
			}
		})
	}
}

// Files that cannot be read at the start are reported; the others are used. Each is read as soon as possible.
func TestStartWithUnreadableFiles(t *testing.T) {
	dir := t.TempDir()
	at := func(name string) string { return filepath.Join(dir, name) }
	write(t, at("good.yaml"), svc("good", "10.0.0.1"))
	link := func(to, name string) { must(t, os.Symlink(to, at(name))) }
	must(t, syscall.Mkfifo(at("fifo.yaml"), 0o600))
	must(t, syscall.Mkfifo(at("pipe"), 0o600))
	must(t, os.Mkdir(at("directory.yaml"), 0o700))
	for name, to := range map[string]string{
		"to-fifo": "pipe", "device": "/dev/zero", "memory": "/proc/self/mem", "loop": "loop.yaml", "dangling": "nowhere/x",
	} {
		link(to, name+".yaml")
	}
	write(t, at("large.yaml"), "")
	must(t, os.Truncate(at("large.yaml"), 200<<20))
	r := run(t, dir)
	r.waitFor(view{"good": "[10.0.0.1] "})
	names := map[string]string{
		"fifo": "named pipe", "to-fifo": "named pipe", "device": "a device", "memory": "input/output error",
		"loop": "too many levels", "dangling": "no such file", "directory": "is a directory",
		"large": "200 MiB; the limit is 32 MiB",
	}
	for name, reason := range names {
		r.waitForReport(at(name+".yaml"), reason)
	}
	want := view{"good": "[10.0.0.1] "}
	i := 0
	for name := range names {
		i++
		must(t, os.Remove(at(name+".yaml")))
		write(t, at(name+".yaml"), svc(name, fmt.Sprintf("10.0.1.%d", i)))
		want[name] = fmt.Sprintf("[10.0.1.%d] ", i)
		r.waitFor(want)
	}
	waitForState(t, r.src, source.State{From: dir, Connected: true, Files: len(want)})
}

// A FIFO, a device or a broken link in place of a file is reported, the last content of
// the file stays in force, and other files are still followed.
func TestFileReplacedByAnotherKind(t *testing.T) {
	dir := t.TempDir()
	path, other := filepath.Join(dir, "a.yaml"), filepath.Join(dir, "b.yaml")
	next := path + "~"
	write(t, path, svc("a", "10.0.0.1"))
	write(t, other, svc("b", "10.0.0.2"))
	r := run(t, dir)
	i := 2
	for name, put := range map[string]func() error{
		"a named pipe": func() error { return syscall.Mkfifo(next, 0o600) },
		"a device":     func() error { return os.Symlink("/dev/zero", next) },
		"input/output": func() error { return os.Symlink("/proc/self/mem", next) },
		"too many":     func() error { return os.Symlink("a.yaml", next) },
	} {
		was := r.view["a"]
		must(t, put())
		must(t, os.Rename(next, path)) // at once, as a file that is missing for a moment may be noticed
		r.waitForReport(path, name, isKept)
		i++
		write(t, other, svc("b", fmt.Sprintf("10.0.0.%d", i)))
		r.waitFor(view{"a": was, "b": fmt.Sprintf("[10.0.0.%d] ", i)})
		must(t, os.Remove(path))
		i++
		write(t, path, svc("a", fmt.Sprintf("10.0.0.%d", i)))
		r.waitFor(view{"a": fmt.Sprintf("[10.0.0.%d] ", i), "b": fmt.Sprintf("[10.0.0.%d] ", i-1)})
	}
}

// A file that cannot be read at first is read by a retry, without a change in its folder.
func TestRetry(t *testing.T) {
	dir, elsewhere := t.TempDir(), t.TempDir()
	must(t, os.Symlink(filepath.Join(elsewhere, "a", "x.yaml"), filepath.Join(dir, "x.yaml")))
	write(t, filepath.Join(dir, "good.yaml"), svc("good", "10.0.0.1"))
	r := run(t, dir)
	r.waitForReport("x.yaml", "no such file")
	must(t, os.Mkdir(filepath.Join(elsewhere, ".a"), 0o700))
	write(t, filepath.Join(elsewhere, ".a", "x.yaml"), svc("x", "10.0.0.2"))
	must(t, os.Rename(filepath.Join(elsewhere, ".a"), filepath.Join(elsewhere, "a")))
	r.waitFor(view{"good": "[10.0.0.1] ", "x": "[10.0.0.2] "})
}

// While no file can be read the Source is not ready, so that existing rules stay.
func TestStartWaitsWhileNothingCanBeRead(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "x.yaml")
	must(t, syscall.Mkfifo(path, 0o600))
	store := cluster.NewStore()
	var reported reports
	s := New(store, Options{Paths: []string{path}, Report: reported.add})
	ended := make(chan error, 1)
	go func() { ended <- s.Run(t.Context()) }()
	t.Cleanup(func() { must(t, <-ended) })
	reported.wait(t, "named pipe")
	select {
	case <-store.Ready():
		t.Error("ready before anything was read")
	default:
	}
	if s.State().Connected {
		t.Error("the state is Connected before everything was read")
	}
	must(t, os.Remove(path))
	write(t, path, svc("a", "10.0.0.1"))
	select {
	case <-store.Ready():
	case <-time.After(20 * time.Second):
		t.Error("not ready after the file was created")
	}
}

// Files that are created and deleted during the start never make it fail.
func TestStartWhileFilesComeAndGo(t *testing.T) {
	dir := t.TempDir()
	write(t, filepath.Join(dir, "good.yaml"), svc("good", "10.0.0.1"))
	stop := make(chan struct{})
	var writing sync.WaitGroup
	writing.Go(func() {
		for i := 0; ; i++ {
			select {
			case <-stop:
				return
			default:
			}
			path := filepath.Join(dir, fmt.Sprintf("m%d.yaml", i%20))
			if os.Remove(path) != nil {
				_ = os.WriteFile(path, []byte(svc(fmt.Sprintf("m%d", i%20), "10.0.1.1")), 0o600)
			}
		}
	})
	defer writing.Wait()
	defer close(stop)
	for range 30 {
		t.Run("", func(t *testing.T) {
			r := run(t, dir)
			if r.view["good"] != "[10.0.0.1] " {
				t.Errorf("the Services are %v", r.view)
			}
		})
		must(t, New(cluster.NewStore(), Options{Paths: []string{dir}}).Load())
	}
}

// A file that grows beyond the limit is refused, and read when it is small again.
func TestGrowingFile(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "log.yaml")
	write(t, filepath.Join(dir, "good.yaml"), svc("good", "10.0.0.1"))
	write(t, path, svc("a", "10.0.0.2"))
	r := run(t, dir)
	f, err := os.OpenFile(path, os.O_APPEND|os.O_WRONLY, 0)
	must(t, err)
	line := []byte(strings.Repeat("# "+strings.Repeat("x", 1000)+"\n", 1000))
	for range 40 {
		_, err := f.Write(line)
		must(t, err)
	}
	must(t, f.Close())
	r.waitForReport(path, "the limit is 32 MiB", isKept)
	write(t, filepath.Join(dir, "good.yaml"), svc("good", "10.0.0.3"))
	r.waitFor(view{"good": "[10.0.0.3] ", "a": "[10.0.0.2] "})
	write(t, path, svc("a", "10.0.0.4"))
	r.waitFor(view{"good": "[10.0.0.3] ", "a": "[10.0.0.4] "})
}

// Many broken files cause as few log lines as many broken documents: the daemon reports through a Digest.
func TestManyBrokenFiles(t *testing.T) {
	dir := t.TempDir()
	for i := range 2000 {
		write(t, filepath.Join(dir, fmt.Sprintf("%d.yaml", i)), "x\n")
	}
	var reported reports
	digest := event.NewDigest(event.DigestOptions{
		Report: reported.add, Summary: func(_ event.Group, p route.Problem) { reported.add([]route.Problem{p}) },
	})
	s := New(cluster.NewStore(), Options{Paths: []string{dir}, Report: digest.Report})
	must(t, s.Load())
	digest.Flush()
	if all := reported.all(); len(all) != 11 || !strings.Contains(all[10], "1989 more such problems") {
		t.Errorf("reported %q", all)
	}
	if got := s.State().Trouble; !strings.HasPrefix(got, "2000 problems in 2000 files") {
		t.Errorf("trouble %q", got)
	}
}

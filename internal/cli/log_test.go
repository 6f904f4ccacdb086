package cli

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"regexp"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/sluice-proxy/sluice/internal/config"
	"github.com/sluice-proxy/sluice/internal/testing/texttest"
)

// streams are standard output and standard error.
type streams struct{ out, err texttest.Buffer }

// withoutTimes returns the lines of a log without their times.
func withoutTimes(text string) string {
	return regexp.MustCompile(`time=\S+ |"time":"[^"]*",`).ReplaceAllString(text, "")
}

func (s *streams) logs(c config.Logging) *logs { return newLogs(c, &s.out, &s.err) }

// expect compares and removes what was written.
func (s *streams) expect(t *testing.T, stdout, stderr string) {
	t.Helper()
	out, err := withoutTimes(s.out.Take()), withoutTimes(s.err.Take())
	if diff := cmp.Diff([]string{stdout, stderr}, []string{out, err}); diff != "" {
		t.Errorf("standard output and error (-want +got):\n%s", diff)
	}
}

// Each -v logs the records of its slog level and above.
func TestVerbosity(t *testing.T) {
	ctx := context.Background()
	for _, tt := range []struct {
		v    int
		want string
	}{
		{-3, "info error "},
		{0, "info error "},
		{2, "info error two "},
		{3, "info error two "},
		{4, "info error two debug "},
		{9, "info error two debug nine "},
		{1 << 31, "info error two debug nine "},
	} {
		var s streams
		log := s.logs(config.Logging{Verbosity: tt.v}).Logger()
		log.Info("info")
		log.Error("error")
		log.Log(ctx, slog.Level(-2), "two")
		log.Debug("debug")
		log.Log(ctx, slog.Level(-9), "nine")
		out, text := withoutTimes(s.out.Take()), withoutTimes(s.err.Take())
		var got strings.Builder
		for _, m := range regexp.MustCompile(`msg=(\w+)`).FindAllStringSubmatch(text, -1) {
			got.WriteString(m[1] + " ")
		}
		if got.String() != tt.want || out != "" {
			t.Errorf("-v=%d: %s on standard error, want %s; %q on standard output", tt.v, &got, tt.want, out)
		}
	}
}

// Without split streams everything goes to standard error, in either format.
func TestFormatsAndStreams(t *testing.T) {
	for _, tt := range []struct {
		name     string
		settings config.Logging
		out, err string
	}{
		{
			"text",
			config.Logging{Format: "text"},
			"",
			"level=INFO msg=hello k=v\nlevel=WARN msg=careful after=1m30s\nlevel=ERROR msg=no\n",
		},
		{
			"defaults",
			config.Logging{},
			"",
			"level=INFO msg=hello k=v\nlevel=WARN msg=careful after=1m30s\nlevel=ERROR msg=no\n",
		},
		{
			"json",
			config.Logging{Format: "json"},
			"",
			`{"level":"INFO","msg":"hello","k":"v"}` + "\n" + `{"level":"WARN","msg":"careful","after":"1m30s"}` + "\n" +
				`{"level":"ERROR","msg":"no"}` + "\n",
		},
		{
			"split text",
			config.Logging{SplitStream: true},
			"level=INFO msg=hello k=v\nlevel=WARN msg=careful after=1m30s\n",
			"level=ERROR msg=no\n",
		},
		{
			"split json",
			config.Logging{Format: "json", SplitStream: true},
			`{"level":"INFO","msg":"hello","k":"v"}` + "\n" + `{"level":"WARN","msg":"careful","after":"1m30s"}` + "\n",
			`{"level":"ERROR","msg":"no"}` + "\n",
		},
		{
			"a buffer without split streams",
			config.Logging{InfoBufferSize: 1 << 20, FlushFrequency: time.Hour},
			"",
			"level=INFO msg=hello k=v\nlevel=WARN msg=careful after=1m30s\nlevel=ERROR msg=no\n",
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var s streams
			log := s.logs(tt.settings).Logger()
			log.Info("hello", "k", "v")
			log.Warn("careful", "after", 90*time.Second)
			log.Error("no")
			s.expect(t, tt.out, tt.err)
		})
	}
}

// The levels of -v below INFO have one name, in either format.
func TestLevelsHavePlainNames(t *testing.T) {
	for _, tt := range []struct{ format, want string }{
		{"text", "level=DEBUG msg=two\nlevel=DEBUG msg=four\nlevel=DEBUG msg=nine\n"},
		{"json", `{"level":"DEBUG","msg":"two"}` + "\n" + `{"level":"DEBUG","msg":"four"}` + "\n" +
			`{"level":"DEBUG","msg":"nine"}` + "\n"},
	} {
		var s streams
		log := s.logs(config.Logging{Format: tt.format, Verbosity: 9}).Logger()
		log.Log(t.Context(), slog.Level(-2), "two")
		log.Debug("four")
		log.Log(t.Context(), slog.Level(-9), "nine")
		s.expect(t, "", tt.want)
	}
}

// Attributes and groups of a logger are in both streams, in both formats.
func TestAttributes(t *testing.T) {
	for _, tt := range []struct {
		settings config.Logging
		out, err string
	}{
		{config.Logging{}, "", "level=INFO msg=one a=1 g.b=2 g.c=3\nlevel=ERROR msg=two a=1 g.b=2\n"},
		{
			config.Logging{Format: "json", SplitStream: true},
			`{"level":"INFO","msg":"one","a":1,"g":{"b":2,"c":3}}` + "\n",
			`{"level":"ERROR","msg":"two","a":1,"g":{"b":2}}` + "\n",
		},
	} {
		var s streams
		log := s.logs(tt.settings).Logger().With("a", 1).WithGroup("g").With("b", 2)
		log.Info("one", "c", 3)
		log.Debug("no")
		log.Error("two")
		s.expect(t, tt.out, tt.err)
	}
}

// SetVerbosity changes the level of loggers that exist, but not that of source files with a level of their own.
func TestSetVerbosity(t *testing.T) {
	var s streams
	l := s.logs(config.Logging{Verbosity: 1})
	log := l.Logger().With("k", "v")
	l.SetVerbosity(5)
	log.Debug("more")
	l.SetVerbosity(2)
	log.Debug("no")
	s.expect(t, "", "level=DEBUG msg=more k=v\n")

	l = s.logs(config.Logging{VModule: []config.VModule{{Pattern: "log_test", Verbosity: 4}}})
	l.SetVerbosity(1)
	l.Logger().Debug("this file")
	s.expect(t, "", "level=DEBUG msg=\"this file\"\n")
}

// A source file may log more than the others; the first pattern that matches it counts, and none makes it log less.
func TestVModule(t *testing.T) {
	const here = "level=DEBUG msg=here\n"
	for _, tt := range []struct {
		name      string
		verbosity int
		files     []config.VModule
		want      string
	}{
		{"this file", 0, []config.VModule{{Pattern: "log_test", Verbosity: 4}}, here},
		{"a pattern", 0, []config.VModule{{Pattern: "log_*", Verbosity: 9}}, here},
		{"not enough", 0, []config.VModule{{Pattern: "log_*", Verbosity: 3}}, ""},
		{"another file", 0, []config.VModule{{Pattern: "log", Verbosity: 9}, {Pattern: "loop*", Verbosity: 9}}, ""},
		{"the first counts", 0, []config.VModule{{Pattern: "log_*", Verbosity: 1}, {Pattern: "*", Verbosity: 9}}, ""},
		{"not less", 4, []config.VModule{{Pattern: "*", Verbosity: 0}}, here},
		{"not a pattern", 0, []config.VModule{{Pattern: "[", Verbosity: 9}, {Pattern: "*_test", Verbosity: 4}}, here},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var s streams
			log := s.logs(config.Logging{Verbosity: tt.verbosity, VModule: tt.files}).Logger()
			log.Debug("here")
			s.expect(t, "", tt.want)
		})
	}
}

// A record without a program counter is logged by the verbosity for all files.
func TestVModuleWithoutSource(t *testing.T) {
	var s streams
	h := s.logs(config.Logging{VModule: []config.VModule{{Pattern: "*", Verbosity: 9}}}).Logger().Handler()
	for _, level := range []slog.Level{slog.LevelDebug, slog.LevelInfo} {
		if err := h.Handle(t.Context(), slog.NewRecord(time.Time{}, level, "x", 0)); err != nil {
			t.Fatal(err)
		}
	}
	s.expect(t, "", "level=INFO msg=x\n")
}

// A record that is not logged needs no allocation.
func TestDisabledLevelDoesNotAllocate(t *testing.T) {
	var s streams
	log := s.logs(config.Logging{Verbosity: 2}).Logger().With("a", 1)
	if n := testing.AllocsPerRun(100, func() { log.Debug("no") }); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

// With a buffer, lines wait until it is full, the period is over, an error is logged, or the process ends.
func TestBuffer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const line = "level=INFO msg=a\n"
		buffered := config.Logging{SplitStream: true, InfoBufferSize: 180, FlushFrequency: 5 * time.Second}
		var s streams
		l := s.logs(buffered)
		log := l.Logger()

		log.Info("a")
		time.Sleep(4 * time.Second)
		log.Info("a") // does not make the first wait longer
		s.expect(t, "", "")
		time.Sleep(time.Second + 1)
		synctest.Wait()
		s.expect(t, line+line, "")
		time.Sleep(time.Hour)
		s.expect(t, "", "")

		for range 4 { // of 47 bytes, with the time
			log.Info("a")
		}
		s.expect(t, strings.Repeat(line, 4), "")

		log.Info("a")
		log.Error("b")
		s.expect(t, line, "level=ERROR msg=b\n")

		log.Info("a")
		l.Flush()
		l.Flush()
		s.expect(t, line, "")
	})
}

// Lines for a closed stream are dropped, and do not stay in memory.
func TestBrokenStream(t *testing.T) {
	l := newLogs(config.Logging{SplitStream: true, InfoBufferSize: 10, FlushFrequency: time.Hour}, broken{}, broken{})
	log := l.Logger()
	for range 100 {
		log.Info("a")
	}
	log.Error("b")
	if n := len(l.out.held); n != 0 {
		t.Errorf("%d bytes are in the buffer", n)
	}
}

type broken struct{}

func (broken) Write([]byte) (int, error) { return 0, errors.New("broken pipe") }

// Lines stay whole when several goroutines log and the verbosity changes meanwhile.
func TestManyAtOnce(t *testing.T) {
	var s streams
	l := s.logs(config.Logging{SplitStream: true, InfoBufferSize: 64, FlushFrequency: time.Millisecond})
	var group sync.WaitGroup
	for range 4 {
		log := l.Logger().With("k", "v")
		group.Go(func() {
			for range 200 {
				log.Info("a")
			}
		})
	}
	for i := range 50 {
		l.SetVerbosity(i)
	}
	group.Wait()
	l.Flush()
	out, err := withoutTimes(s.out.Take()), withoutTimes(s.err.Take())
	lines := strings.Count(out+err, "\n")
	if whole := strings.Count(out+err, "level=INFO msg=a k=v\n"); lines != 800 || whole != 800 {
		t.Errorf("%d lines, %d of them whole, want 800", lines, whole)
	}
}

// While the reader does not read, writes return soon. When it reads again, it gets the
// write that was under way, the number of dropped writes, and the lines since.
func TestLogStreamDoesNotBlock(t *testing.T) {
	for format, dropped := range map[string]string{
		"text": `level=WARN msg="The reader of the log was too slow; lines were dropped" writes=1000` + "\n",
		"json": `"level":"WARN","msg":"The reader of the log was too slow; lines were dropped","writes":1000}` + "\n",
	} {
		synctest.Test(t, func(t *testing.T) {
			reader, writer := io.Pipe()
			p := &logStream{to: writer, format: format}
			began := time.Now()
			if n, err := p.Write([]byte("first\n")); n != 6 || err != nil {
				t.Errorf("the first write: %d, %v", n, err)
			}
			for range 1000 {
				if _, err := p.Write([]byte("lost\n")); !errors.Is(err, errNotRead) {
					t.Fatalf("a write that is not read: %v", err)
				}
			}
			if took := time.Since(began); took > maxWriteWait {
				t.Errorf("writing took %v", took)
			}
			text := make(chan string)
			go func() {
				all, _ := io.ReadAll(reader)
				text <- string(all)
			}()
			synctest.Wait()
			for _, line := range []string{"second\n", "third\n"} {
				if n, err := p.Write([]byte(line)); n != len(line) || err != nil {
					t.Errorf("a write that is read: %d, %v", n, err)
				}
			}
			_ = writer.Close()
			got := <-text
			if !strings.HasPrefix(got, "first\n") || !strings.HasSuffix(got, dropped+"second\nthird\n") ||
				strings.Contains(got, "lost\n") {
				t.Errorf("the reader got:\n%s", got)
			}
		})
	}
}

func TestLogStreamReturnsErrors(t *testing.T) {
	reader, writer := io.Pipe()
	_ = reader.Close()
	p := &logStream{to: writer}
	for range 3 {
		if _, err := p.Write([]byte("line\n")); !errors.Is(err, io.ErrClosedPipe) {
			t.Errorf("got %v", err)
		}
	}
}

// The caller may change its slice after Write, as slog does.
func TestLogStreamCopiesLines(t *testing.T) {
	reader, writer := io.Pipe()
	p := &logStream{to: writer}
	line := []byte("line\n")
	if _, err := p.Write(line); err != nil {
		t.Fatal(err)
	}
	copy(line, "????")
	got := make([]byte, 5)
	if _, err := io.ReadFull(reader, got); err != nil || string(got) != "line\n" {
		t.Errorf("got %q, %v", got, err)
	}
}

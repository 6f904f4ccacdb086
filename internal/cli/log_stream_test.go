package cli

import (
	"errors"
	"io"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// While the reader does not read, writes return soon. When it reads again, it gets the
// write that was under way, the number of dropped writes, and the lines since.
func TestLogStreamDoesNotBlock(t *testing.T) {
	for format, dropped := range map[string]string{
		"text": `level=WARN msg="The log was not read for a while; lines were dropped" writes=1000` + "\n",
		"json": `"level":"WARN","msg":"The log was not read for a while; lines were dropped","writes":1000}` + "\n",
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

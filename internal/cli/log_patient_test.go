package cli

import (
	"errors"
	"io"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// Nobody reads, then somebody does: what was on its way arrives, what came
// meanwhile does not, and that is said.
func TestNothingWaitsForAReader(t *testing.T) {
	for format, told := range map[string]string{
		"text": `level=WARN msg="Nobody read the log for a while, some of it was left out" writes=1000` + "\n",
		"json": `"level":"WARN","msg":"Nobody read the log for a while, some of it was left out","writes":1000}` + "\n",
	} {
		synctest.Test(t, func(t *testing.T) {
			reader, writer := io.Pipe()
			p := &patient{to: writer}
			p.speak(format)
			began := time.Now()
			if n, err := p.Write([]byte("first\n")); n != 6 || err != nil {
				t.Errorf("the first write: %d, %v", n, err)
			}
			for range 1000 {
				if _, err := p.Write([]byte("lost\n")); !errors.Is(err, errUnread) {
					t.Fatalf("a write nobody reads: %v", err)
				}
			}
			if took := time.Since(began); took > longest {
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
			if !strings.HasPrefix(got, "first\n") || !strings.HasSuffix(got, told+"second\nthird\n") || strings.Contains(got, "lost\n") {
				t.Errorf("the reader got:\n%s", got)
			}
		})
	}
}

func TestAStreamThatIsBrokenSaysSo(t *testing.T) {
	reader, writer := io.Pipe()
	_ = reader.Close()
	p := &patient{to: writer}
	for range 3 {
		if _, err := p.Write([]byte("line\n")); !errors.Is(err, io.ErrClosedPipe) {
			t.Errorf("got %v", err)
		}
	}
}

// The buffer of the caller is its own again after the write.
func TestWhatIsWrittenStaysAsItWas(t *testing.T) {
	reader, writer := io.Pipe()
	p := &patient{to: writer}
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

//go:build linux

package page

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/sluice-proxy/sluice/test/harness"
	"github.com/sluice-proxy/sluice/test/lab"
	"github.com/sluice-proxy/sluice/test/machine"
)

// timeout bounds an answer of the browser, and the load of a page.
func timeout() time.Duration { return machine.Scale(20 * time.Second) }

// browser is a Chromium with one tab, driven by the DevTools protocol over a pair of pipes.
type browser struct {
	t       *testing.T
	to      io.Writer
	answers chan message
	session string // of the tab
	calls   int
	loads   int
	faults  []string // what the tab complained about, such as a violation of the Content-Security-Policy
	fetched []string // every URL that the tab requested
}

// message is a call, its answer or an event.
type message struct {
	ID        int             `json:"id,omitempty"`
	SessionID string          `json:"sessionId,omitempty"`
	Method    string          `json:"method,omitempty"`
	Params    any             `json:"params,omitempty"`
	Result    json.RawMessage `json:"result,omitempty"`
	Error     *struct {
		Message string `json:"message"`
	} `json:"error,omitempty"`
}

type object = map[string]any

// browse starts a browser on a host.
func browse(t *testing.T, host *lab.Host) *browser {
	t.Helper()
	path, err := chromium()
	if err != nil {
		t.Skipf("no browser: %v", err)
	}
	commands, toBrowser, err := os.Pipe()
	must(t, err)
	fromBrowser, answers, err := os.Pipe()
	must(t, err)
	cmd := exec.Command(path, "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run",
		"--disable-background-networking", "--disable-component-update", "--hide-scrollbars",
		"--user-data-dir="+t.TempDir(), "--remote-debugging-pipe")
	cmd.ExtraFiles = []*os.File{commands, answers} // its descriptors 3 and 4
	cmd.Env = append(os.Environ(), "HOME="+t.TempDir())
	p, err := harness.Start(host, cmd)
	must(t, err)
	_, _ = commands.Close(), answers.Close()
	b := &browser{t: t, to: toBrowser, answers: make(chan message, 1000)}
	go b.read(fromBrowser)
	t.Cleanup(func() {
		_ = toBrowser.Close() // ends it
		<-p.Ended()
	})
	b.open()
	return b
}

// read passes on messages, each of which ends with a zero byte.
func (b *browser) read(from io.Reader) {
	defer close(b.answers)
	for in := bufio.NewReader(from); ; {
		line, err := in.ReadBytes(0)
		if err != nil {
			return
		}
		var m message
		if json.Unmarshal(line[:len(line)-1], &m) == nil {
			b.answers <- m
		}
	}
}

// open opens the tab, in which scripts do not run.
func (b *browser) open() {
	var target struct {
		TargetID string `json:"targetId"`
	}
	b.call("Target.createTarget", object{"url": "about:blank"}, &target)
	var attached struct {
		SessionID string `json:"sessionId"`
	}
	b.call("Target.attachToTarget", object{"targetId": target.TargetID, "flatten": true}, &attached)
	b.session = attached.SessionID
	for _, domain := range []string{"Page", "Network", "Log", "DOM", "Audits"} {
		b.call(domain+".enable", nil, nil)
	}
	b.call("Emulation.setScriptExecutionDisabled", object{"value": true}, nil)
}

// call calls a method and waits for its answer.
func (b *browser) call(method string, params, result any) {
	b.t.Helper()
	b.calls++
	id := b.calls
	text, err := json.Marshal(message{ID: id, SessionID: b.session, Method: method, Params: params})
	must(b.t, err)
	_, err = b.to.Write(append(text, 0))
	must(b.t, err)
	m := b.until(method, func(m message) bool { return m.ID == id })
	if m.Error != nil {
		b.t.Fatalf("%s: %s", method, m.Error.Message)
	}
	if result != nil {
		must(b.t, json.Unmarshal(m.Result, result))
	}
}

// until notes events until a message comes.
func (b *browser) until(what string, is func(message) bool) message {
	b.t.Helper()
	late := time.After(timeout())
	for {
		select {
		case m, open := <-b.answers:
			if !open {
				b.t.Fatalf("%s: the browser has ended", what)
			}
			b.note(m)
			if is(m) {
				return m
			}
		case <-late:
			b.t.Fatalf("%s: no answer within %v", what, timeout())
		}
	}
}

func (b *browser) note(m message) {
	params, _ := m.Params.(object)
	switch m.Method {
	case "Page.loadEventFired":
		b.loads++
	case "Network.requestWillBeSent":
		request, _ := params["request"].(object)
		b.fetched = append(b.fetched, fmt.Sprint(request["method"], " ", request["url"]))
	case "Log.entryAdded", "Audits.issueAdded":
		b.faults = append(b.faults, fmt.Sprint(params))
	}
}

// loading does something that loads a page, and waits for it.
func (b *browser) loading(do func()) {
	b.t.Helper()
	before := b.loads
	do()
	for b.loads == before {
		b.until("load", func(m message) bool { return m.Method == "Page.loadEventFired" })
	}
}

func (b *browser) visit(url string) {
	b.t.Helper()
	b.loading(func() { b.call("Page.navigate", object{"url": url}, nil) })
}

// find returns the first element that a selector of CSS selects.
func (b *browser) find(selector string) (id int) {
	b.t.Helper()
	var document struct {
		Root struct {
			NodeID int `json:"nodeId"`
		} `json:"root"`
	}
	b.call("DOM.getDocument", nil, &document)
	var found struct {
		NodeID int `json:"nodeId"`
	}
	b.call("DOM.querySelector", object{"nodeId": document.Root.NodeID, "selector": selector}, &found)
	if found.NodeID == 0 {
		b.t.Fatalf("the page has no %s", selector)
	}
	return found.NodeID
}

// html returns an element with its content.
func (b *browser) html(selector string) string {
	b.t.Helper()
	var out struct {
		OuterHTML string `json:"outerHTML"`
	}
	b.call("DOM.getOuterHTML", object{"nodeId": b.find(selector)}, &out)
	return out.OuterHTML
}

// write replaces the text of an input.
func (b *browser) write(selector, text string) {
	b.t.Helper()
	b.call("DOM.focus", object{"nodeId": b.find(selector)}, nil)
	b.call("Input.dispatchKeyEvent", object{"type": "keyDown", "commands": []string{"selectAll"}}, nil)
	b.call("Input.insertText", object{"text": text}, nil)
}

// press presses the key Enter in an element, as people do who use no mouse.
func (b *browser) press(selector string) {
	b.t.Helper()
	b.call("DOM.focus", object{"nodeId": b.find(selector)}, nil)
	b.call("Input.dispatchKeyEvent", object{
		"type": "keyDown", "key": "Enter", "code": "Enter", "windowsVirtualKeyCode": 13, "text": "\r",
	}, nil)
}

// screen sets the size of the screen, and the colours that the user prefers.
func (b *browser) screen(width, height int, scheme string) {
	b.t.Helper()
	b.call("Emulation.setDeviceMetricsOverride", object{
		"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600,
	}, nil)
	b.call("Emulation.setEmulatedMedia", object{
		"features": []object{{"name": "prefers-color-scheme", "value": scheme}},
	}, nil)
}

// layout is where the content is that the screen shows.
type layout struct {
	Content struct {
		Width float64 `json:"width"` // more than that of the screen if it must be scrolled sideways
	} `json:"cssContentSize"`
	Screen struct {
		Top float64 `json:"pageY"`
	} `json:"cssVisualViewport"`
}

func (b *browser) layout() (l layout) {
	b.t.Helper()
	b.call("Page.getLayoutMetrics", nil, &l)
	return l
}

// keep keeps a picture of an element.
func (b *browser) keep(name, selector string) {
	b.t.Helper()
	var box struct {
		Model struct {
			Border        [8]float64 `json:"border"` // the corners, relative to the screen
			Width, Height float64
		} `json:"model"`
	}
	b.call("DOM.getBoxModel", object{"nodeId": b.find(selector)}, &box)
	var shot struct {
		Data []byte `json:"data"`
	}
	b.call("Page.captureScreenshot", object{"captureBeyondViewport": true, "clip": object{
		"x": box.Model.Border[0], "y": box.Model.Border[1] + b.layout().Screen.Top,
		"width": box.Model.Width, "height": box.Model.Height, "scale": 1,
	}}, &shot)
	folder, err := filepath.Abs("../../.cache/page")
	must(b.t, err)
	must(b.t, os.MkdirAll(folder, 0o755))
	path := filepath.Join(folder, name+".png")
	must(b.t, os.WriteFile(path, shot.Data, 0o600))
	b.t.Logf("screenshot: %s, %d bytes", path, len(shot.Data))
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

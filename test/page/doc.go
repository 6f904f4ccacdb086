// Package page opens the page at the address of the metrics in a real Chromium, without JavaScript, and keeps
// screenshots in .cache/page.
package page

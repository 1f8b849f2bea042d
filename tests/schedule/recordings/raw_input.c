/* Asks to be told of the next input, three times, and prints what came: how long the structures are, what each call answered, and for
   every message of input the ticks of now and of the last input (GetLastInputInfo). After each first one the devices are taken back,
   and for two seconds whatever still comes is counted. What was pressed is never read. scripts/record-last-input runs it. */
typedef struct { unsigned size, ticks; } last_input;
typedef struct { unsigned short page, usage; unsigned flags; void *target; } device;
typedef struct { void *window; unsigned message; unsigned long long w; long long l; unsigned time; long x, y; } message;
__declspec(dllimport) void *__stdcall CreateWindowExW(unsigned, const unsigned short *, void *, unsigned, int, int, int, int, void *,
                                                      void *, void *, void *);
__declspec(dllimport) int __stdcall RegisterRawInputDevices(const device *, unsigned, unsigned);
__declspec(dllimport) int __stdcall GetMessageW(message *, void *, unsigned, unsigned);
__declspec(dllimport) long long __stdcall DefWindowProcW(void *, unsigned, unsigned long long, long long);
__declspec(dllimport) unsigned long long __stdcall SetTimer(void *, unsigned long long, unsigned, void *);
__declspec(dllimport) int __stdcall KillTimer(void *, unsigned long long);
__declspec(dllimport) int __stdcall DestroyWindow(void *);
__declspec(dllimport) int __stdcall GetLastInputInfo(last_input *);
__declspec(dllimport) int __cdecl wsprintfA(char *, const char *, ...);
__declspec(dllimport) unsigned __stdcall GetTickCount(void);
__declspec(dllimport) void *__stdcall GetStdHandle(unsigned);
__declspec(dllimport) int __stdcall WriteFile(void *, const void *, unsigned, unsigned *, void *);
__declspec(dllimport) void __stdcall ExitProcess(unsigned);
enum { WM_INPUT = 0xFF, WM_TIMER = 0x113, SINK = 0x100, REMOVE = 1 };

static void say(const char *what, unsigned a, unsigned b) {
    char line[96];
    unsigned written;
    int length = wsprintfA(line, "%s %u %u\n", what, a, b);
    WriteFile(GetStdHandle((unsigned)-11), line, (unsigned)length, &written, 0);
}

static int ask(void *window, unsigned flags) {
    device devices[2] = {{1, 2, flags, window}, {1, 6, flags, window}};
    return RegisterRawInputDevices(devices, 2, sizeof(device));
}

void mainCRTStartup(void) {
    static const unsigned short kind[] = {'S', 'T', 'A', 'T', 'I', 'C', 0};
    say("sizes", sizeof(device), sizeof(message));
    void *window = CreateWindowExW(0, kind, 0, 0, 0, 0, 0, 0, (void *)-3, 0, 0, 0);
    say("window", window != 0, GetTickCount());
    say("refused", (unsigned)ask(window, REMOVE), GetTickCount());
    for (int n = 0; n < 3; n++) {
        unsigned after = 0;
        int is_armed = 1;
        message found;
        say("armed", (unsigned)ask(window, SINK), GetTickCount());
        while (GetMessageW(&found, 0, 0, 0) > 0) {
            if (found.message == WM_INPUT && is_armed) {
                last_input last = {sizeof last, 0};
                GetLastInputInfo(&last);
                say("input", GetTickCount(), last.ticks);
                say("disarmed", (unsigned)ask(0, REMOVE), GetTickCount());
                is_armed = 0;
                SetTimer(window, 1, 2000, 0);
            } else if (found.message == WM_INPUT) {
                after++;
            }
            DefWindowProcW(found.window, found.message, found.w, found.l);
            if (found.message == WM_TIMER) break;
        }
        KillTimer(window, 1);
        say("after", after, GetTickCount());
    }
    say("destroyed", (unsigned)DestroyWindow(window), GetTickCount());
    ExitProcess(0);
}

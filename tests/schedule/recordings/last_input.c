/* Prints what GetLastInputInfo and GetTickCount say, three times a second: whether it is told, the tick of the last input, the tick of
   now. Without headers or a C library, so that any compiler that can link for Windows will do; scripts/record-last-input runs it. */
typedef struct { unsigned size, ticks; } last_input;
__declspec(dllimport) int __stdcall GetLastInputInfo(last_input *);
__declspec(dllimport) int __cdecl wsprintfA(char *, const char *, ...);
__declspec(dllimport) unsigned __stdcall GetTickCount(void);
__declspec(dllimport) void *__stdcall GetStdHandle(unsigned);
__declspec(dllimport) int __stdcall WriteFile(void *, const void *, unsigned, unsigned *, void *);
__declspec(dllimport) void __stdcall Sleep(unsigned);
__declspec(dllimport) void __stdcall ExitProcess(unsigned);

void mainCRTStartup(void) {
    void *out = GetStdHandle((unsigned)-11);
    for (int n = 0; n < 20; n++) {
        last_input found = {sizeof found, 0};
        unsigned written;
        char line[64];
        int told = GetLastInputInfo(&found);
        int length = wsprintfA(line, "%u %u %u\n", told, found.ticks, GetTickCount());
        WriteFile(out, line, (unsigned)length, &written, 0);
        Sleep(300);
    }
    ExitProcess(0);
}
